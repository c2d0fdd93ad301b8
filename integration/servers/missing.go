package servers

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// MissingSuffix is what, after the name of a server's variable, names the variable that
// says why this machine does not have the server. cmd/withservers sets it once
// it has tried; nothing else tries again then.
const MissingSuffix = "_MISSING"

// Missing is the error of a server that this machine does not have.
type Missing struct {
	Server  string // such as "PgBouncer"
	Why     string // a few words, such as "no pgbouncer on the PATH"
	Install string // what to install
	Cause   error  // may be nil
}

func (m *Missing) Error() string {
	text := m.Server + ": " + m.Why
	if m.Cause != nil {
		text += ": " + m.Cause.Error()
	}
	return text + "; install " + m.Install
}

func (m *Missing) Unwrap() error { return m.Cause }

// LeftOut names the server and says why it is not there, for the report of a
// test that is left out.
func (m *Missing) LeftOut() string { return m.Server + " (" + m.Why + ")" }

// knownMissing returns m, with the reason that the server's variable gives, if
// the server is known to be missing; else nil.
func knownMissing(variable string, m Missing) error {
	m.Why = os.Getenv(variable + MissingSuffix)
	if m.Why == "" {
		return nil
	}
	return &m
}

// fetchFailed is the error of something that cannot be fetched. Its message
// leaves out the cause, which may be long.
type fetchFailed struct {
	what  string
	cause error
}

func (e *fetchFailed) Error() string { return e.what + " cannot be fetched" }
func (e *fetchFailed) Unwrap() error { return e.cause }

// fetch is a download, tried until it fails once in the process: on a machine
// without a network each attempt may take minutes.
type fetch struct {
	mu     sync.Mutex
	failed error
}

// once runs the download unless it has failed before. It must be cheap where
// everything is there already.
func (f *fetch) once(download func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil {
		f.failed = download()
	}
	return f.failed
}

// lookPath finds a program on the PATH or in the directory sbin beside a bin on
// it: the PATH of an ordinary user often lacks the latter.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, directory := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.Base(directory) != "bin" {
			continue
		}
		if path, beside := exec.LookPath(filepath.Join(filepath.Dir(directory), "sbin", name)); beside == nil {
			return path, nil
		}
	}
	return "", errors.New("no " + name + " on the PATH")
}
