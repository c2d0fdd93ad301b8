package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachPaymentIsSentOneToFiveTimesSomeAtTheSameMoment(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	payments := MakePayments(1000, random)
	deliveries := MakeDeliveries(payments, random)
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
	require.Len(t, times, mostCopies)
	for n := 1; n <= mostCopies; n++ {
		require.InDelta(t, 200, times[n], 60, "payments that are sent %d times", n)
	}
	require.Greater(t, together, 500)
	require.Less(t, together, len(deliveries)-len(payments))
}

func TestPlansAreRepeatable(t *testing.T) {
	plan := func(seed uint64) ([]Payment, []order) {
		random := rand.New(rand.NewPCG(seed, seed))
		deliveries := MakeDeliveries(MakePayments(100, random), random)
		return deliveries, MakeKills(8, len(deliveries), random)
	}
	deliveries, kills := plan(7)
	same, sameKills := plan(7)
	require.Equal(t, deliveries, same)
	require.Equal(t, kills, sameKills)
	other, _ := plan(8)
	require.NotEqual(t, deliveries, other)
}

func TestKillsComeByEveryPoint(t *testing.T) {
	found := map[Point]int{}
	for _, k := range MakeKills(8, 1000, rand.New(rand.NewPCG(1, 1))) {
		found[k.at]++
		require.LessOrEqual(t, k.after, 750)
	}
	require.Equal(t, map[Point]int{beforeBody: 2, inBody: 2, afterBody: 2, afterAll: 2}, found)
}
