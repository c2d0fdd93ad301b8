package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEventsHaveTheExpectedMix(t *testing.T) {
	for _, n := range []int{1, 2, 9, 20, 300, 5000} {
		events := MakeEvents(n, rand.New(rand.NewPCG(7, 7)))
		require.Len(t, events, n)
		duplicates, malformed, failing := 0, 0, map[string]int{}
		known := map[string]bool{}
		for _, e := range events {
			switch {
			case e.Order == nil:
				malformed++
			case e.Duplicate:
				duplicates++
				require.True(t, known[e.Order.OrderID], "a duplicate of an order that has not been")
			default:
				require.False(t, known[e.Order.OrderID])
				known[e.Order.OrderID] = true
				for _, fault := range e.Order.Faults {
					failing[fault]++
				}
			}
		}
		require.Equal(t, n/10, duplicates)
		require.Equal(t, n/50, malformed)
		require.Equal(t, n/25, failing[once])
		require.Equal(t, n/100, failing[always])
	}
}

func TestEventsAreRepeatable(t *testing.T) {
	first := MakeEvents(500, rand.New(rand.NewPCG(7, 7)))
	require.Equal(t, first, MakeEvents(500, rand.New(rand.NewPCG(7, 7))))
	require.NotEqual(t, first, MakeEvents(500, rand.New(rand.NewPCG(8, 8))))
}
