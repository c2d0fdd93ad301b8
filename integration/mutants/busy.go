package main

func holding(run string) test { return test{Package: "./internal/lease", Run: run} }

// busyMutants are of what holds while a SQLite file is busy.
var busyMutants = []mutant{
	{
		Name: "a lease that cannot be renewed because the file is busy is lost",
		Why:  "a transaction longer than WorkerTimeout would never complete (contract 5.3)",
		File: "internal/lease/busy.go",
		Old:  "		h.renew(at, h.grace(), false)",
		New:  "		_ = at",
		Test: holding("^TestBusyFileIsNoSilence$"),
	},
	{
		Name: "a busy file counts as a renewal without a look",
		Why:  "another may have taken the lease in between: both would process (contract 5.3)",
		File: "internal/lease/busy.go",
		Old:  "	ours, _, err := h.lease.owned(h.Term(), h.grace()/2)",
		New:  "	ours, err := true, error(nil)",
		Test: holding("^TestLeaseTakenWhileItsHolderCouldNotRenewItHasOneHolderAtATime$"),
	},
	{
		Name: "a lease that was another's begins a term at once",
		Why:  "a holder whose file was busy has not noticed yet: both would process (contract 5.3)",
		File: "internal/lease/busy.go",
		Old:  "	case h.busy.others:",
		New:  "	case h.busy.others && h.over:",
		Test: holding("^TestLeaseTakenWhileItsHolderCouldNotRenewItHasOneHolderAtATime$"),
	},
	{
		Name: "a lease whose answer was lost begins a term at once",
		Why:  "it may have been another's, who has not noticed yet (contract 5.3)",
		File: "internal/lease/busy.go",
		Old:  "	if !ours {\n		h.busy.others = others\n	}",
		New:  "	h.busy.others = others && !ours",
		Test: holding("^TestLeaseThatWasAnothersBeginsNoTermBeforeItsHolderCanKnow$"),
	},
	{
		Name: "a worker that waits for the file counts as silent",
		Why:  "a transaction longer than WorkerTimeout would never complete (contract 5.9)",
		File: "processor/session.go",
		Old:  "ctx.Err() == nil && h.store.SingleWriter() && store.IsWaiting(err)",
		New:  "ctx.Err() == nil && h.store.SingleWriter() && false",
		Test: processing("TestTransactionLongerThanWorkerTimeoutCompletesOnSQLite"),
	},
	{
		Name: "a worker that was declared dead while it waited for the file goes on",
		Why:  "its messages run elsewhere, too (contract 5.9)",
		File: "processor/session.go",
		Old:  "	case !lives:",
		New:  "	case !lives && s.id == \"\":",
		Test: processing("TestWorkerThatWaitsForTheFileSeesThatItWasTakenForDead"),
	},
	{
		Name: "sqlite: an interrupted statement did not wait",
		Why:  "a duplicate that waits for the first would fail instead of being told so (contract 8)",
		File: "internal/store/errors.go",
		Old:  "IsBusy(err) || ok && code&0xff == 9 || errors.Is",
		New:  "IsBusy(err) || ok && code&0xff == -1 || errors.Is",
		Test: test{Package: "./internal/store", Run: "^TestBusyAndInterruptedStatementsOfSQLiteHaveWaited$"},
	},
}
