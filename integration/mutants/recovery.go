package main

import "time"

// recovering is a test of the processor that takes some seconds.
func recovering(run string) test {
	t := processing(run)
	t.Timeout = 45 * time.Second
	return t
}

// endToEnd is a test with real processes and a server of its own.
func endToEnd(run string) test {
	return test{Module: "integration", Package: "./endtoend", Run: "^" + run + "$", Timeout: 45 * time.Second}
}

var recoveryMutants = []mutant{
	{
		Name: "a call begins although the heartbeat is too old",
		Why:  "a worker that was frozen would run a message after its successors in its lane (contract 5.9, 5.12)",
		File: "processor/session.go",
		Old:  "if time.Since(s.last) >= s.workerTimeout {",
		New:  "if time.Since(s.last) >= 1000*s.workerTimeout {",
		Test: processing("TestNoCallBeginsOnceTheHeartbeatIsTooOld"),
	},
	{
		Name: "a commit whose answer is lost has failed",
		Why:  "what committed would be charged (contract 5.10)",
		File: "processor/transaction.go",
		Old:  "if !store.OutcomeUnknown(commitErr) {",
		New:  "if commitErr != nil {",
		Test: recovering("TestCommitOfUnknownOutcomeHasItsEffectsOnce"),
	},
	{
		Name: "a commit of unknown outcome has succeeded",
		Why:  "effects that were rolled back would be lost (contract 5.10)",
		File: "processor/transaction.go",
		Old:  "found && s.Completed && s.Version == c.Version+1 {",
		New:  "found && s.Version > 0 {",
		Test: recovering("TestCommitOfUnknownOutcomeHasItsEffectsOnce"),
	},
	{
		Name: "a commit that was under way is not read back again",
		Why:  "an attempt that completed would count as stale, and its lane would stand still (contract 5.10, 5.12)",
		File: "processor/results.go",
		Old:  "case r.mayHaveCommitted() && s.Completed && s.Version == r.claim.Version+1:",
		New:  "case r.mayHaveCommitted() && s.Completed && s.Version == r.claim.Version:",
		Test: recovering("TestCommitOfUnknownOutcomeHasItsEffectsOnce"),
	},
	{
		Name: "results whose answer was lost are not read back",
		Why:  "they would count as stale (contract 5.10)",
		File: "processor/results.go",
		Old:  "		case r.tried:\n",
		New:  "		case r.tried && r.handler == nil:\n",
		Test: recovering("TestResultsWhoseAnswerIsLostAreNotCalledStale"),
	},
	{
		Name: "the keys of programs that drain are not listed",
		Why:  "workers would poison the statuses of a cron job (contract 5.7)",
		File: "processor/unknown.go",
		Old:  "	if w.Drains {\n		grace = ",
		New:  "	if w.Drains && w.Released {\n		grace = ",
		Test: recovering("TestWorkersLeaveKeysOfProgramsThatDrainNowAndThen"),
	},
	{
		Name: "a drain does not list its keys",
		Why:  "workers would poison the statuses of a cron job (contract 5.7)",
		File: "processor/unknown.go",
		Old:  "due := time.Since(p.drained) >= p.opts.HeartbeatInterval",
		New:  "due := !p.drained.IsZero() && time.Since(p.drained) >= p.opts.HeartbeatInterval",
		Test: recovering("TestWorkersLeaveKeysOfProgramsThatDrainNowAndThen"),
	},
	{
		Name: "results that cannot be stored are given up",
		Why:  "what has run would run again (contract 5.1)",
		File: "processor/completer.go",
		Old:  "		for i := range batch {\n			c.queue[i].tried = true\n		}\n",
		New:  "		c.queue = c.queue[len(batch):]\n",
		Test: recovering("TestResultsWhoseAnswerIsLostAreNotCalledStale"),
	},
	{
		Name: "one refused result holds up all others",
		Why:  "one damaged status would stop the worker (contract 5.10)",
		File: "processor/results.go",
		Old:  "	if err == nil || store.IsTransient(err) {\n",
		New:  "	if err == nil || c.store != nil {\n",
		Test: recovering("TestResultThatIsRefusedStrandsNoOther"),
	},
	{
		Name: "claiming goes on whatever cannot be stored",
		Why:  "a crash would run all of that again (contract 5.1)",
		File: "processor/completer.go",
		Old:  "return len(c.queue) + c.refused",
		New:  "return min(0, len(c.queue)+c.refused)",
		Test: recovering("TestResultsThatCannotBeStoredAreKeptAndNobodyTakesTheirClaims"),
	},
	{
		Name: "a worker that returns lets its results wait",
		Why:  "it would recover, and run again, what it has done itself (contract 5.9)",
		File: "processor/lifecycle.go",
		Old:  "		a.completer.hurry()\n",
		New:  "",
		Test: recovering("TestResultsThatWaitAreStoredBeforeTheirWorkerIDIsRecovered"),
	},
	{
		Name: "a worker without a heartbeat claims to the last",
		Why:  "its claims would be younger than the silence it is judged by (contract 5.9)",
		File: "processor/session.go",
		Old:  "time.Since(s.last) < s.workerTimeout*2/3",
		New:  "time.Since(s.last) < s.workerTimeout",
		Test: processing("TestSilentWorkerMayClaimForTwoThirdsOfWorkerTimeout"),
	},
	{
		Name: "a late heartbeat wakes nobody",
		Why:  "what came meanwhile would wait for the next poll (contract 4.7, 5.9)",
		File: "processor/session.go",
		Old:  "back = time.Since(s.last) >= s.workerTimeout*2/3",
		New:  "back = time.Since(s.last) >= s.workerTimeout*9",
		Test: recovering("TestWorkerWhoseHeartbeatIsLateClaimsAgainAtOnce"),
	},
	{
		Name: "one look declares a worker dead",
		Why:  "a pause of one heartbeat would run its messages twice (contract 5.9)",
		File: "processor/sweeper.go",
		Old:  "if s.suspects[w.ID] < 2 {",
		New:  "if s.suspects[w.ID] < 1 {",
		Test: recovering("TestWorkerIsNotDeclaredDeadByOneLook"),
	},
	{
		Name: "who cannot heartbeat judges others",
		Why:  "a worker cut off itself would take the others' claims (contract 5.9)",
		File: "processor/lifecycle.go",
		Old:  "		if err == nil {\n			err = sw.sweep(ctx, s.id, ",
		New:  "		if ctx.Err() == nil {\n			err = sw.sweep(ctx, s.id, ",
		Test: recovering("TestWorkerThatCannotHeartbeatDeclaresNobodyDead"),
	},
	{
		Name: "a stop that leaves something says farewell",
		Why:  "its claims would wait twice as long, taken for those of a worker that has none (contract 5.8)",
		File: "processor/stop.go",
		Old:  "settled := unstored == 0 && a.left.count() == 0",
		New:  "settled := unstored == 0",
		Test: recovering("TestStopThatRunsOutOfTimeReturnsInTimeAndLeavesTheRestToRecovery"),
	},
	{
		Name: "transactions of dead workers are left open",
		Why:  "their statuses would wait until TCP gives up, for hours (contract 5.9)",
		File: "processor/sweeper.go",
		Old:  "	if left {\n",
		New:  "	if left && s.store == nil {\n",
		Test: endToEnd("TestWorkerFrozenPastItsTimeoutChangesNothing"),
	},
	{
		Name: "a claim is held as long as an earlier one of its status is",
		Why:  "one whose answer was lost would never be run while its worker lives (contract 5.9)",
		File: "processor/claim.go",
		Old:  "	return h.ids[r.StatusID] == r.Version\n",
		New:  "	return h.ids[r.StatusID] > 0\n",
		Test: processing("^TestLostClaimIsFoundAlthoughTheFailureBeforeItIsStillBeingStored$"),
	},
	{
		Name: "lost claims are looked for once",
		Why:  "one that the server commits late would never be run while its worker lives (contract 5.9)",
		File: "processor/claim.go",
		Old:  "since < 2*c.opts.WorkerTimeout {",
		New:  "since < c.opts.StatementTimeout {",
		Test: processing("^TestClaimThatIsCommittedLongAfterItsAnswerWasGivenUpIsFound$"),
	},
	{
		Name: "lost claims are looked for beside claims only",
		Why:  "while all handlers are busy, for hours perhaps, nobody could run them (contract 5.9)",
		File: "processor/claiming.go",
		Old:  "		if l.mayLook() {\n			l.startClaiming(nil, nil)",
		New:  "		if len(shares) > 0 {\n			l.startClaiming(nil, nil)",
		Test: processing("^TestLostClaimIsReleasedWhileHandlersAreBusy$"),
	},
}
