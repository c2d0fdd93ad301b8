// Package maketest runs `make test` like a machine on which little is installed. It uses few
// packages and a PATH of its own.
package maketest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hidden are the programs that the machine does not have. Without apt-get, root cannot install them
// either.
var hidden = []string{"redis-server", "pgbouncer", "chromium", "chromium-browser", "google-chrome",
	"google-chrome-stable", "headless-shell", "java", "mvn", "apt-get", "mariadbd", "mysqld"}

// small are the arguments for a run of one test for each of those programs.
var small = []string{
	"test", "MODULES=./integration", "PACKAGES=./kafka ./redisstore ./pooler ./dashboard",
	"TEST_FLAGS=-run '^(TestNilAndEmptyStayDistinct|TestDocumentedRightsSuffice|TestListenWorksThroughSessionPooler|TestThemeIsSwitchedAndRemembered)$$'",
}

func TestMissingProgramsAreNamedAndTheirTestsSkipped(t *testing.T) {
	output, err := makeTest(t)
	require.NoError(t, err, output)
	lines := strings.Split(strings.TrimSpace(output), "\n")
	require.Contains(t, lines[0],
		"servers: missing, and not root with apt-get to install: redis-server pgbouncer mariadb-server-core "+
			"mariadb-client-core chromium default-jdk-headless")
	last := lines[len(lines)-1]
	require.Regexp(t, `^tests: [1-9]\d* passed, 0 failed, [1-9]\d* left out: `, last, output)
	require.Contains(t, last, "Chromium (no chromium or google-chrome on the PATH)")
	require.Contains(t, last, "Kafka on a real broker (no Java 17 or newer)")
	require.Contains(t, last, "Redis (no redis-server on the PATH)")
	require.Regexp(t, `PgBouncer \(no pgbouncer on the PATH\)|PostgreSQL \(`, last)
	require.Contains(t, output, "--- PASS: TestNilAndEmptyStayDistinct/in-process")
}

func TestRequiredMissingProgramsFail(t *testing.T) {
	output, err := makeTest(t, "CI=true")
	require.ErrorAs(t, err, new(*exec.ExitError))
	require.Contains(t, output, "withservers: Redis: no redis-server on the PATH; install redis-server")
	require.NotContains(t, output, "tests: ", "none ran")
}

// makeTest runs make with these arguments and a PATH without the hidden programs.
func makeTest(t *testing.T, environment ...string) (output string, err error) {
	t.Helper()
	top, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	path := t.TempDir()
	for _, directory := range filepath.SplitList(os.Getenv("PATH")) {
		programs, _ := os.ReadDir(directory) // the PATH may name missing directories
		for _, program := range programs {
			if !slices.Contains(hidden, program.Name()) {
				// an error means that an earlier directory has the program
				_ = os.Symlink(filepath.Join(directory, program.Name()), filepath.Join(path, program.Name()))
			}
		}
	}
	command := exec.Command("make", append(slices.Clone(small), "--no-print-directory", "-C", top, "BIN="+t.TempDir())...)
	command.Env = append(slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "INBOX_TEST_") || strings.HasPrefix(variable, "MAKE") ||
			strings.HasPrefix(variable, "MFLAGS")
	}), "PATH="+path, "JAVA_HOME=", "CI=")
	command.Env = append(command.Env, environment...)
	combined, err := command.CombinedOutput()
	return string(combined), err
}
