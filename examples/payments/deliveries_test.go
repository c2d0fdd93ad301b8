package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPaymentsAreSentUpToFiveTimes(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	payments := MakePayments(1000, random)
	deliveries := MakeDeliveries(payments, 0, random)
	copies, together := map[string]int{}, 0
	for i, p := range deliveries {
		copies[p.ID]++
		if i > 0 && deliveries[i-1].ID == p.ID {
			together++
		}
	}
	times := map[int]int{}
	for _, p := range payments {
		times[copies[p.ID]]++
	}
	require.Len(t, times, maxCopies)
	for n := 1; n <= maxCopies; n++ {
		require.InDelta(t, 200, times[n], 60, "payments that are sent %d times", n)
	}
	require.Greater(t, together, 500)
	require.Less(t, together, len(deliveries)-len(payments))
}

func TestPlansAreRepeatable(t *testing.T) {
	plan := func(seed uint64) []Payment {
		random := rand.New(rand.NewPCG(seed, seed))
		return MakeDeliveries(MakePayments(100, random), 8, random)
	}
	require.Equal(t, plan(7), plan(7))
	require.NotEqual(t, plan(7), plan(8))
}

func TestPaymentsKillAtEachPoint(t *testing.T) {
	for _, n := range []int{32, 1000} {
		random := rand.New(rand.NewPCG(1, 1))
		found, copies := map[Point]int{}, map[string]int{}
		for _, p := range MakeDeliveries(MakePayments(n, random), 8, random) {
			copies[p.ID]++
			if p.KillAt != "" {
				found[p.KillAt]++
				copies[p.ID] += maxCopies
			}
		}
		for id, n := range copies {
			require.LessOrEqual(t, n, maxCopies+1, "a copy of %s could be handled before it kills", id)
		}
		require.Equal(t, map[Point]int{beforeHandler: 2, inHandler: 2, afterHandler: 2, afterMarker: 2}, found)
		require.Len(t, copies, n)
	}
}
