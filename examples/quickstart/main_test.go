package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demotest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { demotest.Main(m, main) }

// figures are what the program prints at the end.
func figures(t *testing.T, out string) map[string]float64 {
	t.Helper()
	return demotest.Figures(t, out, "produced", "duplicates_sent", "accepted", "duplicates", "rejected",
		"completed_book-revenue",
		"completed_notify-customer", "retried", "poisoned", "kills", "reruns", "lost", "doubled", "seconds")
}

// requireWhole checks the figures that do not depend on chance, of 300 records.
func requireWhole(t *testing.T, got map[string]float64, kills int) {
	t.Helper()
	want := map[string]float64{
		"produced": 300, "duplicates_sent": 30, "accepted": 264, "duplicates": 30, "rejected": 6,
		"completed_book-revenue": 262, "completed_notify-customer": 263, "poisoned": 3, "kills": float64(kills), "lost": 0,
		"doubled": 0,
	}
	for name, value := range want {
		require.Equal(t, value, got[name], name)
	}
	require.LessOrEqual(t, got["retried"], 12.0)
}

func TestLedgerBalances(t *testing.T) {
	got := figures(t, demotest.Balances(t, command.Run, "-n", "300", "-seed", "1"))
	requireWhole(t, got, 0)
	require.Equal(t, 12.0, got["retried"])
}

func TestLedgerBalancesWhenTheServiceIsKilled(t *testing.T) {
	requireWhole(t, figures(t, demotest.Balances(t, command.Run, "-n", "300", "-crash", "2", "-seed", "2")), 2)
}

func TestLedgerBalancesOnRealServers(t *testing.T) {
	kafka := os.Getenv("INBOX_TEST_KAFKA")
	if kafka == "" {
		testenv.LeaveOut(t, "Kafka on a real broker", "INBOX_TEST_KAFKA")
	}
	out := demotest.Balances(t, command.Run, "-n", "300", "-crash", "1", "-seed", "3", "-postgres",
		testenv.PostgresDSN(t), "-kafka", kafka)
	requireWhole(t, figures(t, out), 1)
}

func TestLedgerBalancesOnMariaDB(t *testing.T) {
	out := demotest.Balances(t, command.Run, "-n", "300", "-crash", "1", "-seed", "3", "-mysql",
		testenv.MySQLDSN(t, testenv.MariaDBVariable))
	requireWhole(t, figures(t, out), 1)
}

func TestCommandNeedsNothingButGo(t *testing.T) {
	requireWhole(t, figures(t, demotest.GoRun(t, "quickstart", "-n", "300", "-crash", "1")), 1)
}

// TestFirstRunCompilesNoC keeps a stranger's first run short: SQLite's C code would be a quarter of its build.
func TestFirstRunCompilesNoC(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		"{{if and .Module (or .CgoFiles .CFiles)}}{{.ImportPath}}{{end}}", ".")
	list.Env = append(os.Environ(), "CGO_ENABLED=1") // without it such files are ignored
	found, err := list.Output()
	require.NoError(t, err)
	require.Empty(t, strings.Fields(string(found)))
}

func TestUnexpectedServiceExitFailsTheRun(t *testing.T) {
	demotest.RequireExitNoticed(t, command.Run, "worker-1", "-n", "20")
}

func TestInterruptedRunLeavesNothingBehind(t *testing.T) {
	demotest.RequireInterruptible(t, command.Run, func(line string) bool {
		return strings.HasPrefix(line, "accepted") && !strings.HasPrefix(line, "accepted 0,")
	}, "-n", "5000")
}

func TestBadFlagsAreRefused(t *testing.T) {
	demotest.RequireRefused(t, command.Run, map[string][]string{
		"-n = 0: must be 1 to 1000000":        {"-n", "0"},
		"-crash = -1: must be 0 to 50":        {"-crash", "-1"},
		"-crash = 51: must be 0 to 50":        {"-crash", "51"},
		`unknown argument "please"`:           {"please"},
		"-postgres and -mysql: choose one":    {"-postgres", "host=x", "-mysql", "root@tcp(x)/d"},
		"-mysql: must be user:password@tcp":   {"-mysql", "mysql://root@x/d"},
		"flag provided but not defined: -sed": {"-sed", "1"},
	})
}
