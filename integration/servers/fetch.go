package servers

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// programCache returns the directory for programs that a server's account must be able to run, which cannot read root's
// own cache.
func programCache() (string, error) {
	base := "/var/cache"
	if os.Geteuid() != 0 {
		var err error
		if base, err = os.UserCacheDir(); err != nil {
			return "", err
		}
	}
	return filepath.Join(base, "inbox-test"), nil
}

// fetched returns the directory with this name in the cache. If there is none, fetch makes one beside a directory for
// its work. The result is renamed when it is complete, so that no process finds an incomplete one.
func fetched(cache, name string, fetch func(work, result, log string) error) (string, error) {
	result := filepath.Join(cache, name)
	if _, err := os.Stat(result); err == nil {
		return result, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }() // only needed after a failure
	made := filepath.Join(work, "result")
	if err := fetch(work, made, filepath.Join(work, "fetch.log")); err != nil {
		return "", err
	}
	renamed := os.Rename(made, result)
	if _, err := os.Stat(result); err != nil {
		return "", renamed
	}
	return result, nil // also if another process was faster, whose result is complete
}

// copyWithMaven copies the libraries that a project needs.
func copyWithMaven(project, work, libraries, log string) error {
	maven, err := exec.LookPath("mvn")
	if err != nil {
		return errors.New("no mvn on the PATH")
	}
	pom := filepath.Join(work, "pom.xml")
	if err := os.WriteFile(pom, []byte(project), 0o644); err != nil {
		return err
	}
	return run(5*time.Minute, exec.Command(maven, "-q", "-B", "-f", pom,
		"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+libraries), nil, log)
}
