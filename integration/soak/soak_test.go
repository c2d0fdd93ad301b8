package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) {
	workload.MainIfWorker()
	os.Exit(m.Run())
}

// soakFailed is the exit status if a short soak has no result, which must not be taken for a finding.
const soakFailed = 3

func TestShortSoakBreaksNoPromise(t *testing.T) {
	soakShortly(t, "postgres", "worker_killed|worker_terminated|database_killed|connections_cut")
}

func TestShortSoakUnderPatroniBreaksNoPromise(t *testing.T) {
	soakShortly(t, "patroni", "worker_killed|leader_killed")
}

// soakShortly does some harm for half a minute. MINUTES, SEED, RATE and HARMS make it longer, another one, with another
// load, or do other harm: `go run ./mutants -soak` sets them.
func soakShortly(t *testing.T, database, harms string) {
	t.Helper()
	if os.Getenv("MINUTES") == "" {
		testenv.Long(t)
	}
	product, err := productNamed(database)
	require.NoError(t, err)
	minutes, err := strconv.ParseFloat(cmp.Or(os.Getenv("MINUTES"), "0.4"), 64)
	require.NoError(t, err)
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), "1"), 10, 64)
	require.NoError(t, err)
	rate, err := strconv.Atoi(cmp.Or(os.Getenv("RATE"), "100"))
	require.NoError(t, err)
	only, err := regexp.Compile(cmp.Or(os.Getenv("HARMS"), harms))
	require.NoError(t, err)
	r, err := run(t.Context(), options{product: product, lasts: time.Duration(minutes * float64(time.Minute)), seed: seed,
		rate: rate, workers: 2, harms: only})
	var missing interface{ LeftOut() string }
	if errors.As(err, &missing) {
		testenv.LeaveOutIf(t, err)
	}
	if err != nil {
		fmt.Println("the soak has no result:", err)
		os.Exit(soakFailed)
	}
	require.Empty(t, r.broken())
	for name, tally := range r.Harms {
		require.Positive(t, tally.Done, name)
	}
}
