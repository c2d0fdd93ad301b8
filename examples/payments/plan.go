package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// accounts is how many payments go to.
const accounts = 50

// MakePayments makes n payments.
func MakePayments(n int, random *rand.Rand) []Payment {
	payments := make([]Payment, n)
	for i := range payments {
		payments[i] = Payment{ID: fmt.Sprintf("payment-%06d", i+1), Account: 1 + random.IntN(accounts), Cents: 1 +
			random.Int64N(10_000)}
	}
	return payments
}

// mostCopies is how often a payment is sent at most.
const mostCopies = 5

// MakeDeliveries sends each payment one to five times: some copies right behind each
// other, so that several consumers have them at the same moment, others any time
// later.
func MakeDeliveries(payments []Payment, random *rand.Rand) []Payment {
	type at struct {
		moment float64
		Payment
	}
	var all []at
	for i, p := range payments {
		first := float64(i)
		all = append(all, at{first, p})
		for range random.IntN(mostCopies) {
			moment := first
			if random.IntN(3) == 0 {
				moment += random.Float64() * float64(len(payments)-i)
			}
			all = append(all, at{moment, p})
		}
	}
	slices.SortStableFunc(all, func(a, b at) int { return cmp.Compare(a.moment, b.moment) })
	deliveries := make([]Payment, len(all))
	for i, a := range all {
		deliveries[i] = a.Payment
	}
	return deliveries
}

// MakeKills spreads n kills over the first three quarters of so many deliveries,
// so that the last one is recovered from, too: each point in turn, at a moment
// of chance.
func MakeKills(n, deliveries int, random *rand.Rand) []order {
	kills := make([]order, n)
	first := random.IntN(len(points))
	for i := range kills {
		kills[i] = order{after: 1 + random.IntN(max(1, deliveries*3/4)), at: points[(first+i)%len(points)]}
	}
	slices.SortStableFunc(kills, func(a, b order) int { return cmp.Compare(a.after, b.after) })
	return kills
}
