package main

// portableMutants break what the store does on engines that are not PostgreSQL.
var portableMutants = []mutant{
	{
		Name:    "portable: claims change the statuses twice in a statement",
		Why:     "an engine such as CockroachDB refuses every claim of ordered handlers (contract 3.4)",
		Package: "internal/store/postgres",
		In:      "Store.claimLanes",
		Old:     "statement = claimLanesAtOnceSQL",
		New:     "statement = claimLanesSQL",
		Test:    test{Package: "./internal/store/postgres", Run: "^TestPortable$/^suite$/^Lanes$"},
	},
	{
		Name:    "portable: a worker is marked as released while it claims",
		Why:     "its claims would not be found by the sweep that released it (contract 5.9)",
		Package: "internal/store/postgres",
		In:      "claimsLockPortable",
		Old:     "FOR KEY SHARE SKIP LOCKED",
		New:     "",
		Test:    test{Package: "./internal/store/postgres", Run: "^TestPortable$/^suite$/^(Claim|Local_dispatch)$"},
	},
	{
		Name:    "portable: an engine that runs READ COMMITTED as snapshots is taken",
		Why:     "a cleanup would delete what an accept has just added (contract 4.2)",
		Package: "internal/store/postgres",
		In:      "Store.probeIsolation",
		Old:     "return errSnapshots",
		New:     "return nil",
		Test:    test{Package: "./internal/store/postgres", Run: "^TestEngineThatWouldLoseOrDoubleMessagesIsRefused$"},
	},
}
