package main

// operatingMutants break operations: operators act on what they saw, within their rights, and leave
// an audit trail.
var operatingMutants = []mutant{
	{
		Name:    "an operator retries a status that has changed",
		Why:     "operators would act on what they have not seen (contract 11.1)",
		Package: "ops",
		In:      "isRef",
		Old:     "(c.version = 0 OR s.version = c.version) AND ",
		New:     "",
		Test:    test{Package: "./ops", Run: "^TestOnlyOpenStatusesThatDoNotRunAreChanged$"},
	},
	{
		Name:    "an operator discards what a worker runs",
		Why:     "its lane would run two messages at once, and its result would be lost (contract 5.12, 11.1)",
		Package: "ops",
		In:      "discard",
		Old:     " AND (s.is_poisoned OR s.processing_started_at IS NULL)",
		New:     "",
		Test:    test{Package: "./ops", Run: "^TestDiscardOfAClaimedStatusIsRefused$"},
	},
	{
		Name:    "a discarded status does not move its lane on",
		Why:     "the lane would be stuck until a sweep (contract 5.12)",
		Package: "ops",
		In:      "Ops.wakeAfter",
		Old:     "c.lane != nil &&",
		New:     "madeDue && c.lane != nil &&",
		Test:    test{Package: "./ops", Run: "^TestDiscardedPendingStatusesMoveTheirLaneOn$"},
	},
	{
		Name:    "a rejected record whose handler fails again is deleted",
		Why:     "it would be lost (contract 7.6)",
		Package: "acceptor",
		In:      "Acceptor.rerun",
		Old:     "if bad != nil {",
		New:     "if bad != nil && a == nil {",
		Test:    test{Module: "integration", Package: "./kafka", Run: "^TestRejectedInlineRecordRunsAgain$/own_table/sqlite"},
	},
	{
		Name:    "an operator's action goes without its audit row",
		Why:     "it could not be told who did it (contract 11.3)",
		Package: "ops",
		In:      "Ops.audited",
		Old:     "return o.store.AddAuditTx(ctx, tx, entry)",
		New:     "_ = entry\n\t\treturn nil",
		Test:    test{Package: "./ops", Run: "^TestEveryActionLeavesItsAuditRow$"},
	},
	{
		Name:    "the dashboard does not compare roles",
		Why:     "viewers could discard (contract 11.4)",
		Package: "dashboard",
		In:      "request.answer",
		Old:     "found.role:",
		New:     "found.role && found.method == http.MethodGet:",
		Test:    test{Package: "./dashboard", Run: "^TestEveryRouteIsRefusedToWhoMayNot$/^sqlite"},
	},
}
