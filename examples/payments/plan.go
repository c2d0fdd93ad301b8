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

// MakeDeliveries sends each payment one to five times: some copies right after each other, so that several
// workers have them at the same moment, others any time later. Some payments kill their worker, at each
// point in turn, and are sent again only because of that: a copy must not be handled first. They are among
// the first three quarters, so that the last kill is recovered from, too.
func MakeDeliveries(payments []Payment, kills int, random *rand.Rand) []Payment {
	points := killsAmong(len(payments), kills, random)
	type at struct {
		moment float64
		Payment
	}
	var all []at
	for i, p := range payments {
		first := float64(i)
		p.KillAt = points[i]
		all = append(all, at{first, p})
		for range random.IntN(mostCopies) {
			moment := first
			if random.IntN(3) == 0 {
				moment += random.Float64() * float64(len(payments)-i)
			}
			if p.KillAt == "" {
				all = append(all, at{moment, p})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b at) int { return cmp.Compare(a.moment, b.moment) })
	deliveries := make([]Payment, len(all))
	for i, a := range all {
		deliveries[i] = a.Payment
	}
	return deliveries
}

// killsAmong chooses which of n payments kill their worker, and at which point.
func killsAmong(n, kills int, random *rand.Rand) map[int]Point {
	chosen, first := map[int]Point{}, random.IntN(len(points))
	for i, payment := range random.Perm(max(kills, n*3/4))[:kills] {
		chosen[payment] = points[(first+i)%len(points)]
	}
	return chosen
}
