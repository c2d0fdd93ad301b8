package servers

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestServersDieWithAKilledOwner(t *testing.T) {
	startPostgres(t, PostgresOptions{}) // leaves the test out if PostgreSQL is missing
	dieWithTheirOwner(t, "PostgreSQL", 2, 9)
}

func TestPatroniDiesWithAKilledOwner(t *testing.T) {
	_, err := findPatroni()
	leaveOutIfMissing(t, err)
	require.NoError(t, err)
	dieWithTheirOwner(t, "Patroni", 4, 8)
}

// dieWithTheirOwner kills a process that owns servers in so many directories, with at least so many processes.
func dieWithTheirOwner(t *testing.T, what string, expected, processes int) {
	t.Helper()
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerEnv+"="+what)
	owner.Stderr = os.Stderr
	output, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	t.Cleanup(func() { _ = owner.Process.Kill() })

	var pids []int
	var directories []string
	lines := bufio.NewScanner(output)
	for lines.Scan() && lines.Text() != "ready" {
		kind, value, _ := strings.Cut(lines.Text(), " ")
		if kind == "directory" {
			directories = append(directories, value)
			continue
		}
		pid, err := strconv.Atoi(value)
		require.NoError(t, err)
		if !gone(pid) { // a session of the start's ping may have ended since
			pids = append(pids, pid)
		}
	}
	require.Equal(t, "ready", lines.Text())
	require.GreaterOrEqual(t, len(pids), processes, "each PostgreSQL has at least five processes")

	require.NoError(t, owner.Process.Kill())
	require.Error(t, owner.Wait())
	require.Eventually(t, func() bool {
		for _, pid := range pids {
			if !gone(pid) {
				return false
			}
		}
		return true
	}, 2*time.Minute, 50*time.Millisecond, "processes outlive their owner")

	// The next start removes what the dead owner could not remove, unless another program's has done it.
	require.Len(t, directories, expected)
	startPostgres(t, PostgresOptions{})
	for _, path := range directories {
		require.NoDirExists(t, path)
	}
}
