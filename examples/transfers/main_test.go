package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demotest"
)

func TestMain(m *testing.M) { demotest.Main(m, main) }

// figures are what the program prints at the end.
func figures(t *testing.T, out string) map[string]float64 {
	t.Helper()
	return demotest.Figures(t, out, "expected", "effects", "lost", "doubled", "out_of_order", "kills", "reruns")
}

// requireWhole checks the figures that do not depend on chance.
func requireWhole(t *testing.T, got map[string]float64, transfers, kills float64) {
	t.Helper()
	reruns := got["reruns"]
	require.Equal(t, map[string]float64{"expected": transfers, "effects": transfers, "lost": 0, "doubled": 0,
		"out_of_order": 0, "kills": kills, "reruns": reruns}, got)
	require.Positive(t, reruns, "some transfers fail at first, so the handler must have been called again")
}

func TestTransfersAreBookedOnceInOrderWhileWorkersAreKilled(t *testing.T) {
	demotest.OnEach(t, func(t *testing.T, server string) {
		out := demotest.Balances(t, command.Run, append(demotest.On(server), "-transfers", "300", "-accounts", "20",
			"-kills", "2", "-seed", "3")...)
		requireWhole(t, figures(t, out), 300, 2)
	})
}

func TestEachTransferIsBookedInOneCommit(t *testing.T) {
	out := demotest.Balances(t, command.Run, "-transfers", "150", "-accounts", "20", "-workers", "2", "-kills", "0",
		"-group", "1", "-seed", "2")
	requireWhole(t, figures(t, out), 150, 0)
}

func TestCommandNeedsNothingButGo(t *testing.T) {
	requireWhole(t, figures(t, demotest.GoRun(t, "transfers", "-transfers", "300", "-kills", "1")), 300, 1)
}

func TestUnexpectedWorkerExitFailsTheRun(t *testing.T) {
	demotest.RequireExitNoticed(t, command.Run, `worker-\d`, "-transfers", "20")
}

func TestInterruptedRunLeavesNothingBehind(t *testing.T) {
	demotest.RequireInterruptible(t, command.Run, func(line string) bool {
		return strings.HasPrefix(line, "accepted") && !strings.HasPrefix(line, "accepted 0,")
	})
}

func TestBadFlagsAreRefused(t *testing.T) {
	demotest.RequireRefused(t, command.Run, map[string][]string{
		"-transfers = 0: must be 1 to 1000000": {"-transfers", "0"},
		"-accounts = 1: must be 2 to 100000":   {"-accounts", "1"},
		"-workers = 0: must be 1 to 20":        {"-workers", "0"},
		"-kills = 51: must be 0 to 50":         {"-kills", "51"},
		"-group = 0: must be 1 to 100":         {"-group", "0"},
		`unknown argument "please"`:            {"please"},
		"flag provided but not defined: -sed":  {"-sed", "1"},
	})
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	s, _, err := command.Parse(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, Settings{Transfers: 10_000, Accounts: 100, Workers: 3, Kills: 5, Group: 10}, s)
}
