package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTransfersAreNumberedPerPayingAccount(t *testing.T) {
	numbers, ids, failing := map[int]int{}, map[string]bool{}, 0
	for _, transfer := range MakeTransfers(5000, 7, rand.New(rand.NewPCG(7, 7))) {
		numbers[transfer.From]++
		require.Equal(t, numbers[transfer.From], transfer.Number)
		require.False(t, ids[transfer.ID])
		ids[transfer.ID] = true
		require.NotEqual(t, transfer.From, transfer.To)
		for _, account := range []int{transfer.From, transfer.To} {
			require.True(t, account >= 1 && account <= 7)
		}
		require.Positive(t, transfer.Cents)
		if transfer.Failures > 0 {
			failing++
		}
	}
	require.Len(t, numbers, 7)
	require.InDelta(t, 5000/oneFailsIn, failing, 50)
}

func TestTransfersAreRepeatable(t *testing.T) {
	first := MakeTransfers(500, 10, rand.New(rand.NewPCG(7, 7)))
	require.Equal(t, first, MakeTransfers(500, 10, rand.New(rand.NewPCG(7, 7))))
	require.NotEqual(t, first, MakeTransfers(500, 10, rand.New(rand.NewPCG(8, 8))))
}
