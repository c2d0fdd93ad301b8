package main

import "time"

// mutant is one defect, put into a copy of the tree to see a test fail.
type mutant struct {
	Name string // short, unique
	Why  string // what the defect breaks, with the contract's clause
	File string // from the top of the tree
	Old  string // must occur exactly once in File
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

// mutants are checked in this order. Add one for every rule whose breach would
// cost a user data: write the defect a hurried change could bring, not noise.
var mutants = concat(harnessMutants, storeMutants, processingMutants, groupMutants, exclusiveMutants, recoveryMutants, lanesMutants, cleanupMutants, busyMutants, modelMutants,
	consumingMutants, fetchMutants, policiesMutants, modesMutants, securityMutants, troubleMutants, visibilityMutants, handoffMutants, listeningMutants, storageMutants, claimingMutants,
	idempotentMutants, gormstoreMutants, redisStoreMutants, nativeMutants, inlineMutants, failoverMutants,
	opsMutants, inboxctlMutants, telemetryMutants, dashboardMutants)

func concat(tables ...[]mutant) []mutant {
	var all []mutant
	for _, table := range tables {
		all = append(all, table...)
	}
	return all
}

var harnessMutants = []mutant{
	{
		Name: "required servers are skipped",
		Why:  "a test run that left servers out would pass as complete",
		File: "internal/testenv/leaveout.go",
		Old:  "\tif Required() {",
		New:  "\tif Required() && false {",
		Test: test{Package: "./internal/testenv", Run: "^TestMissingServerSkipsOrFailsWhereRequired$"},
	},
}
