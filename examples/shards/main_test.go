package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demotest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { demotest.Main(m, main) }

// requireWhole checks the figures that the program prints at the end.
func requireWhole(t *testing.T, out string, deposits, kills float64) {
	t.Helper()
	got := demotest.Figures(t, out, "expected", "effects", "lost", "doubled", "out_of_order", "waited", "dashboards",
		"uncommitted", "arrived", "relearned", "moved", "kills", "reruns")
	require.Greater(t, got["expected"], deposits, "more arrive during the move")
	require.Equal(t, got["expected"], got["effects"])
	require.GreaterOrEqual(t, got["kills"], kills+2, "one in the outage, and one before the move or more")
	for _, least := range []string{"waited", "dashboards", "uncommitted", "arrived", "relearned", "moved", "reruns"} {
		require.Positive(t, got[least], least)
	}
	require.Equal(t, []float64{0, 0, 0}, []float64{got["lost"], got["doubled"], got["out_of_order"]})
}

func TestShardsBookOnceInOrderThroughKillsAnOutageAndAMove(t *testing.T) {
	demotest.OnEach(t, func(t *testing.T, server string) {
		requireWhole(t, demotest.Balances(t, command.Run, append(demotest.On(server), "-deposits", "800", "-accounts", "60",
			"-kills", "2", "-seed", "3")...), 800, 2)
	})
}

func TestShardsBalanceOnRealServers(t *testing.T) {
	kafka := os.Getenv("INBOX_TEST_KAFKA")
	if kafka == "" {
		testenv.LeaveOut(t, "Kafka on a real broker", "INBOX_TEST_KAFKA")
	}
	requireWhole(t, demotest.Balances(t, command.Run, "-deposits", "800", "-accounts", "60", "-kills", "2", "-seed", "5",
		"-postgres", testenv.PostgresDSN(t), "-kafka", kafka), 800, 2)
}

func TestCommandNeedsNothingButGo(t *testing.T) {
	requireWhole(t, demotest.GoRun(t, "shards", "-deposits", "400", "-accounts", "60", "-kills", "0"), 400, 0)
}

func TestUnexpectedWorkerExitFailsTheRun(t *testing.T) {
	demotest.RequireExitNoticed(t, command.Run, `shard\d-\d`, "-deposits", "200")
}

func TestInterruptedRunLeavesNothingBehind(t *testing.T) {
	demotest.RequireInterruptible(t, command.Run, func(line string) bool {
		return strings.HasPrefix(line, "accepted") && !strings.HasPrefix(line, "accepted 0,")
	})
}

func TestBadFlagsAreRefused(t *testing.T) {
	demotest.RequireRefused(t, command.Run, map[string][]string{
		"-deposits = 199: must be 200 to 1000000": {"-deposits", "199"},
		"-accounts = 49: must be 50 to 100000":    {"-accounts", "49"},
		"-kills = 51: must be 0 to 50":            {"-kills", "51"},
	})
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	s, _, err := command.Parse(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, Settings{Deposits: 6000, Accounts: 200, Kills: 4}, s)
}

func TestShardWithoutPartitionsIsRefused(t *testing.T) {
	own, err := firstTable().Of("shard2")
	require.NoError(t, err)
	require.Equal(t, []int{1, 5}, own)
	_, err = firstTable().Of("shard9")
	require.EqualError(t, err, `shard "shard9" owns no partition of the table`)
}
