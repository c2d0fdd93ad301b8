package main

import (
	"slices"
	"time"
)

// mutant is one defect, put into a copy of the tree to see a test fail. It is found by
// the function it is in, so that files may be split and code around it may change.
type mutant struct {
	Name    string // short, unique
	Why     string // what the defect breaks, with the contract's clause
	Package string // its directory, from the top of the tree; "." is the root
	// In is what holds Old: a function, a method as Type.Method, a type, a constant or a
	// variable; or a file of the directory that is not Go.
	In   string
	Old  string // a short expression that occurs exactly once there
	New  string
	Test test
}

// test is the command that must fail: go test in a module's directory.
type test struct {
	Module  string // directory of the module; "" is the root
	Package string // as go test takes it, such as ./processor
	Run     string // -run expression; must select at least one test
	Env     []string
	Timeout time.Duration // of go test; 0 means two minutes
}

func (t test) limit() time.Duration {
	if t.Timeout == 0 {
		return 2 * time.Minute
	}
	return t.Timeout
}

// maxMutants bounds the table, so that checking all of it takes minutes and not hours.
const maxMutants = 80

// mutants are checked in this order. There is one for each guarantee, and for each rule
// whose breach loses, doubles or reorders something: the defect a hurried change could
// bring. A rule that two dialects implement alike has one of either.
var mutants = slices.Concat(acceptingMutants, orderingMutants, cleaningMutants, processingMutants, consumingMutants,
	receivingMutants, failoverMutants, operatingMutants)
