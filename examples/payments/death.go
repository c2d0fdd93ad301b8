package main

import "context"

// Point is where a worker is to kill itself, with all it has in hand; empty is
// nowhere.
type Point string

// The points, in the order in which a delivery comes by.
const (
	beforeBody Point = "before the handler"
	inBody     Point = "in the handler, between two writes"
	afterBody  Point = "after the handler, before anybody remembers it"
	afterAll   Point = "after it is remembered, before the acknowledgement"
)

var points = []Point{beforeBody, inBody, afterBody, afterAll}

// needsBody: a duplicate does not come by.
func (p Point) needsBody() bool { return p == inBody || p == afterBody }

type fateKey struct{}

// withFate has die called where the delivery reaches its point.
func withFate(ctx context.Context, at Point, die func()) context.Context {
	return context.WithValue(ctx, fateKey{}, func(p Point) {
		if p == at {
			die()
		}
	})
}

// reach says how far a delivery is.
func reach(ctx context.Context, p Point) {
	if fate, ok := ctx.Value(fateKey{}).(func(Point)); ok {
		fate(p)
	}
}
