package servers

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
)

// MissingSuffix is appended to the name of a server's variable. The resulting variable says why
// this machine does not have the server. cmd/withservers sets it after it has tried to start the
// server, and nothing tries again then.
const MissingSuffix = "_MISSING"

// Missing is the error for a server that this machine does not have.
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

// LeftOut returns the server and the reason why it is missing, for the report of a test that is
// left out.
func (m *Missing) LeftOut() string { return m.Server + " (" + m.Why + ")" }

// because returns m with this reason.
func (m Missing) because(why string, cause error) error {
	m.Why, m.Cause = why, cause
	return &m
}

// known returns m with the reason from the server's variable, or nil if the server is not known to
// be missing.
func (m Missing) known(variable string) error {
	if why := os.Getenv(variable + MissingSuffix); why != "" {
		return m.because(why, nil)
	}
	return nil
}

// lookPath finds a program on the PATH, or in the directory sbin beside a bin on the PATH, which
// the PATH of an ordinary user often lacks.
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
