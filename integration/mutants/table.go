package main

import (
	"slices"
	"time"
)

// mutant is one defect that is applied to a copy of the tree so that a test fails. It is found by
// the function that contains it, so that files may be split and the code around it may change.
type mutant struct {
	Name    string // short, unique
	Why     string // what the defect breaks, with the contract's clause
	Package string // directory relative to the root of the tree; "." is the root
	// In names what contains Old: a function, a method as Type.Method, a type, a constant or a
	// variable, or a non-Go file of the directory.
	In   string
	Old  string // a short expression that occurs exactly once there
	New  string
	Test test
	// By is the test that Test stands for with -soak, and Hidden why the soak does not find the defect, if so.
	By, Hidden string
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

// maxMutants limits the table, so that checking all of it takes minutes and not hours. Twenty-three of them are for
// MySQL, which has traps that no other dialect has, nine for what leaves, six for partitions, three for what is sealed,
// and three for the portable profile.
const maxMutants = 165

// mutants are all mutants, in the order in which they are checked. There is one for each guarantee,
// and for each rule whose violation loses, doubles or reorders something: the defect that a hurried
// change could introduce. If two dialects implement a rule alike, only one of them has a mutant.
var mutants = slices.Concat(acceptingMutants, orderingMutants, cleaningMutants, processingMutants, consumingMutants,
	receivingMutants, failoverMutants, operatingMutants, outgoingMutants, sealingMutants,
	mysqlMutants, portableMutants)
