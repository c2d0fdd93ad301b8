package main

func processing(run string) test { return test{Package: "./processor", Run: "^" + run + "$"} }

func accepting(run string) test { return test{Package: "./acceptor", Run: "^" + run + "$"} }

var processingMutants = []mutant{
	{
		Name: "a full batch of results waits for the group window",
		Why:  "the database would have nothing to do while results wait for it (contract 5.1)",
		File: "processor/completer.go",
		Old:  "	case <-c.full:\n	case <-end.C:",
		New:  "	case <-end.C:",
		Test: hanging(processing("TestFullBatchOfResultsDoesNotWaitForTheGroupWindow")),
	},
	{
		Name: "a plain status is completed before its handler has run",
		Why:  "a failure would be taken for success, a crash would lose the message (contract 5.5)",
		File: "processor/attempt.go",
		Old:  "errs := r.call(handler.ContextWithDB(ctx, r.db), nil, members, w)",
		New:  "errs := make([]error, len(members)); go func() { _ = r.call(handler.ContextWithDB(ctx, r.db), nil, members, w) }()",
		Test: processing("TestOneHandlersFailureNeverTouchesItsSibling"),
	},
	{
		Name: "a transactional status is completed outside its transaction",
		Why:  "a rollback would leave it completed without its effects (contract 5.11)",
		File: "processor/transaction.go",
		Old:  "return t.store.CompleteTx(t.Ctx, t.DB, completions, t.now())",
		New:  "return t.store.Complete(t.Ctx, completions, t.now())",
		Test: hanging(processing("TestTransactionalWritesHappenExactlyOnce")),
	},
	{
		Name: "a swallowed SQL error is forgotten",
		Why:  "half of a handler's writes would be committed as a success (contract 5.11)",
		File: "processor/transaction.go",
		Old:  "swallowed := statements.Swallowed()",
		New:  "swallowed, _ := error(nil), statements.Swallowed()",
		Test: processing("TestSwallowedSQLErrorIsAFailureUnlessASavepointUndidIt"),
	},
	{
		Name: "a stop charges what it interrupts",
		Why:  "deploys would poison slow messages (contract 5.8)",
		File: "processor/verdict.go",
		Old:  "case errors.Is(cause, errStopping), errors.Is(cause, errFenced),",
		New:  "case errors.Is(cause, errFenced),",
		Test: processing("TestStopReleasesInterruptedAttemptsUncharged"),
	},
	{
		Name: "one retry too many",
		Why:  "MaxRetries is the error count that poisons (contract 5.5)",
		File: "processor/verdict.go",
		Old:  "if settle.ErrorCount >= max(a.policy.MaxRetries, 1) {",
		New:  "if settle.ErrorCount > max(a.policy.MaxRetries, 1) {",
		Test: processing("TestMaxRetriesIsTheErrorCountThatPoisons"),
	},
	{
		Name: "the backoff may be nothing",
		Why:  "half of the base is waited for at least (contract 5.6)",
		File: "internal/invoke/backoff.go",
		Old:  "return half + rand.N(base-half+1)",
		New:  "return rand.N(base-half+1) + half - half",
		Test: processing("TestBackoffDoublesWithJitterUpToItsLimit"),
	},
	{
		Name: "what can never succeed is charged",
		Why:  "its error count is untouched (contract 5.7)",
		File: "processor/verdict.go",
		Old:  "	case errors.As(err, &beyond):\n		return",
		New:  "	case errors.As(err, &beyond):\n		settle.ErrorCount++\n		return",
		Test: processing("TestWhatCanNeverSucceedIsPoisonedAtOnceUncharged"),
	},
	{
		Name: "siblings under a legacy key are not looked at",
		Why:  "a renamed handler would run a message twice (contract 4.2)",
		File: "processor/siblings.go",
		Old:  "if len(a.handler.LegacyKeys()) > 0 {",
		New:  "if len(a.handler.LegacyKeys()) > 99 {",
		Test: processing("TestOfTwoRowsOfARenamedHandlerOneRunsAndTheOtherIsSuperseded"),
	},
	{
		Name: "claims without a worker are stuck at once",
		Why:  "two drains would run one message (contract 5.14)",
		File: "processor/sweeper.go",
		Old:  "before := s.now().Add(-s.opts.StuckMessageThreshold)",
		New:  "before := s.now()",
		Test: processing("TestClaimWithoutAWorkerIsStuckFromTheThresholdOn"),
	},
	{
		Name: "dead workers are never buried",
		Why:  "their claims would wait for ever (contract 5.9)",
		File: "processor/sweeper.go",
		Old:  "if s.suspects[w.ID] < 2 {",
		New:  "if s.suspects[w.ID] < 1<<30 {",
		Test: hanging(processing("TestClaimsOfAVanishedWorkerAreRecovered")),
	},
	{
		Name: "a worker without a heartbeat goes on",
		Why:  "it would run what others have taken over (contract 5.9)",
		File: "processor/session.go",
		Old:  "func() { s.cancel(errFenced) }",
		New:  "func() {}",
		Test: hanging(processing("TestWorkerThatCannotHeartbeatStopsAndComesBack")),
	},
	{
		Name: "one locked status holds up all results",
		Why:  "a single open transaction would stop the worker (contract 5.10)",
		File: "processor/results.go",
		Old:  "	if careful {",
		New:  "	if careful && c.store == nil {",
		Test: hanging(processing("TestLockedStatusHoldsUpNoOtherAndIsStoredWhenFree")),
	},
	{
		Name: "an accept wakes nobody",
		Why:  "every message would wait for the next poll (contract 4.7)",
		File: "acceptor/acceptor.go",
		Old:  "func(r Result) bool { return r.Handlers > 0 }",
		New:  "func(r Result) bool { return r.Handlers > 1<<30 }",
		Test: hanging(processing("TestRunningInboxProcessesWhatAcceptBringsAtOnce")),
	},
	{
		Name: "a message ID has 201 characters",
		Why:  "longer than 200 is a typed error naming the length (contract 4.4)",
		File: "envelope/errors.go",
		Old:  "n > models.MaxMessageID {",
		New:  "n > models.MaxMessageID+1 {",
		Test: accepting("TestMessageIDHasOneTo200Characters"),
	},
	{
		Name: "a bad record under Halt may be committed",
		Why:  "it would be lost without a trace (contract 7.4)",
		File: "acceptor/records.go",
		Old:  "	default:\n		return envelope.Halt\n",
		New:  "	default:\n		return envelope.Durable\n",
		Test: accepting("TestHaltStopsThePartitionBeforeTheBadRecord"),
	},
	{
		Name: "a bad record is not kept",
		Why:  "its offset is committed and its bytes are lost (contract 2, 7.4)",
		File: "acceptor/records.go",
		Old:  "if r.Err != nil && r.Disposition == envelope.Durable {",
		New:  "if r.Err != nil && r.Disposition != envelope.Durable {",
		Test: accepting("TestBadRecordsAreKeptWithTheBatchTheyCameIn"),
	},
	{
		Name: "cleanup does not wait for the lease",
		Why:  "two workers would clean at once (contract 6.1)",
		File: "cleanup/cleaner.go",
		Old:  "if !held {",
		New:  "if !held && owner == nil {",
		Test: test{Package: "./cleanup", Run: "^TestCleanupWithoutTheLeaseChangesNothing$"},
	},
}

func consuming(run string) test {
	return test{Module: "integration", Package: "./kafka", Run: "^" + run + "$"}
}

var consumingMutants = []mutant{
	{
		Name: "offsets are committed before their records are accepted",
		Why:  "a crash in between would lose the records (contract 7.1)",
		File: "kafkaconsumer/worker.go",
		Old:  "		ok := w.accept(acceptCtx, batch)",
		New:  "		for _, c := range batch {\n			c.partition.accept(c.next, w.clock.Now())\n		}\n		ok := w.accept(acceptCtx, batch)",
		Test: hanging(consuming("TestFailedAcceptIsRetriedWithTheSameRecordsAndNothingBehindThem")),
	},
	{
		Name: "a failed accept is passed over",
		Why:  "the records would be lost (contract 7.1)",
		File: "kafkaconsumer/worker.go",
		Old:  "			if !retry.wait(ctx) {\n				return false\n			}",
		New:  "			_, results = retry, make([]envelope.Result, len(received))\n			break",
		Test: hanging(consuming("TestFailedAcceptIsRetriedWithTheSameRecordsAndNothingBehindThem")),
	},
	{
		Name: "a halted record is passed over",
		Why:  "Halt stops the partition before the record (contract 7.4)",
		File: "kafkaconsumer/settle.go",
		Old:  "case r.Disposition == envelope.Durable:",
		New:  "case r.Disposition != envelope.DeadLetter:",
		Test: hanging(consuming("TestHaltStopsItsPartitionBeforeTheRecordAndNoOther")),
	},
}
