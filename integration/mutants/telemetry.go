package main

func measured(run string) test { return test{Module: "integration", Package: "./telemetry", Run: run} }

func judged(run string) test { return test{Package: ".", Run: run} }

// telemetryMutants are of what operators and probes are told.
var telemetryMutants = []mutant{
	{
		Name: "a halted partition leaves the process ready",
		Why:  "nobody would notice that a partition is not consumed (contract 7.4, 11.5)",
		File: "health_reasons.go",
		Old:  "HealthReason{Code: ReasonHalted, State: HealthUnhealthy,",
		New:  "HealthReason{Code: ReasonHalted, State: HealthDegraded,",
		Test: measured("^TestHaltedPartitionFailsReadinessAndShowsItsLag$"),
	},
	{
		Name: "hanging handlers end the process",
		Why:  "a liveness probe would restart it for ever, and no long handler would come to its end (contract 11.5)",
		File: "health.go",
		Old:  "if h.Processor.Busy > 0 || len(",
		New:  "if len(",
		Test: judged("^TestInactivityWhileWorkIsDueDegradesHealth$/^sqlite$"),
	},
	{
		Name: "a process that runs nothing is live",
		Why:  "what only a restart mends would not be (contract 11.5)",
		File: "health.go",
		Old:  "return !slices.ContainsFunc(h.Reasons, func(r HealthReason) bool { return r.Code == ReasonNoProgress && r.State == HealthUnhealthy })",
		New:  "return true",
		Test: judged("^TestProcessThatRunsNothingIsNotLive$"),
	},
	{
		Name: "a worker that stands by owes what is due",
		Why:  "all but one process of an Exclusive inbox would be unready (contract 5.3, 11.5)",
		File: "health_reasons.go",
		Old:  "|| h.Processor.Mode == processor.ModeExclusive && !h.Processor.HoldsLock {",
		New:  "|| h.Processor.Mode == processor.ModeExclusive && h.SampledAt.IsZero() {",
		Test: judged("^TestPassiveWorkerIsHealthy$"),
	},
	{
		Name: "a process that has just started owes what was due before",
		Why:  "after a downtime no process would become ready (contract 11.5)",
		File: "health_reasons.go",
		Old:  "since := latest(s.began, s.dueSince, h.Processor.ProgressAt)",
		New:  "since := latest(s.backlog[0].OldestDue, h.Processor.ProgressAt)",
		Test: judged("^TestInactivityWhileWorkIsDueDegradesHealth$/^sqlite$"),
	},
	{
		Name: "paused handlers owe what is due",
		Why:  "a pause would make every process unready (contract 5.13, 11.5)",
		File: "sampler.go",
		Old:  "b.Due > 0 && !b.Paused && !b.Broken",
		New:  "b.Due > 0",
		Test: judged("^TestPausedHandlersOweNothing$/^sqlite$"),
	},
	{
		Name: "what waits behind others of its lane is due",
		Why:  "a parked lane would make its processes unready, and not live (contract 5.12, 11.5)",
		File: "internal/store/backlog.go",
		Old:  "SELECT w.due, w.claimed, w.claimed OR k.names IS NULL OR ` + postgresHead + ` AS free",
		New:  "SELECT w.due, w.claimed, true AS free",
		Test: test{Package: "./internal/store", Run: "^TestPostgres$/^Backlog$"},
	},
	{
		Name: "a backlog is counted to its end",
		Why:  "each process would read millions of rows every few seconds (contract 12)",
		File: "internal/store/backlog.go",
		Old:  "			LIMIT k.most\n		) w\n",
		New:  "			LIMIT k.most * 1000\n		) w\n",
		Test: test{Package: "./internal/store", Run: "^TestPostgres$/^Backlog$"},
	},
	{
		Name: "a malformed producer's context takes the caller's",
		Why:  "attempts would be part of traces they have nothing to do with (contract 12)",
		File: "telemetry/carrier.go",
		Old:  "propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), carrier(p))",
		New:  "propagator.Extract(ctx, carrier(p))",
		Test: test{Package: "./telemetry", Run: "^TestProducersContextIsFoundWhereProducersPutIt$"},
	},
	{
		Name: "the span of an attempt ends before its commit",
		Why:  "what only the commit refuses would look as if it had been done (contract 12)",
		File: "processor/processor.go",
		Old:  "			a.span.Came(r.outcome, invoke.ErrorType(r.failure, a.cause), r.failure)\n",
		New:  "",
		Test: measured("^TestSpansOfAttemptsThatFailSaySo$/^sqlite$"),
	},
	{
		Name: "handlers get a context without their attempt's span",
		Why:  "their own spans would be lost in traces of their own (contract 12)",
		File: "processor/transaction.go",
		Old:  "members[0].limited(r.traced(ctx, current))",
		New:  "members[0].limited(func() context.Context { r.traced(ctx, current); return ctx }())",
		Test: measured("^TestAMessageIsTracedFromItsProducerToItsHandlersOwnSpans$/^sqlite$"),
	},
	{
		Name: "what is not declared has a series of its own",
		Why:  "whoever sends messages could fill the metrics' storage (contract 12)",
		File: "telemetry/instruments.go",
		Old:  "		if !declared {\n			channel = Other\n		}\n		of :=",
		New:  "		of :=",
		Test: measured("^TestWhatIsNotDeclaredHasNoSeriesOfItsOwn$"),
	},
	{
		Name: "a failed sample goes on being shown",
		Why:  "the backlog would look well while the database is away (contract 12)",
		File: "telemetry/sample.go",
		Old:  "		if !s.Fresh {\n			return nil\n		}\n",
		New:  "",
		Test: measured("^TestGaugesShowTheBacklogWhileTheInboxRuns$/^sqlite$"),
	},
}
