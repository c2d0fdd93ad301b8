package main

// What would be wrong with the numbers that statuses know their messages by,
// and with the plans of statements.
var storageMutants = []mutant{
	{
		Name: "statuses added to a known message get no number",
		Why:  "a handler registered since would never see the message (contract 4.2)",
		File: "internal/store/accept_known.go",
		Old:  "\n\t\tsetNumber(statuses[i], stored.number)",
		New:  "",
		Test: sqliteSuite("^Accept$"),
	},
	{
		Name: "sqlite: the rows of one statement get one number",
		Why:  "a batch would be refused for ever (contract 4.1)",
		File: "internal/store/sqlite_accept.go",
		Old:  "fmt.Sprintf(sqliteAcceptRow, i+1)",
		New:  "fmt.Sprintf(sqliteAcceptRow, 1)",
		Test: sqliteSuite("^Accept$"),
	},
	{
		Name: "cleanup's walk passes over messages received at one moment",
		Why:  "all of a batch but its beginning would stay for ever (contract 6.1)",
		File: "internal/store/postgres_cleanup.go",
		Old:  "(received_at, number) > ($2::timestamptz, $3::bigint)",
		New:  "received_at > $2::timestamptz AND $3::bigint >= 0",
		Test: postgresSuite("^Cleanup$"),
	},
	{
		Name: "postgres: looking for stuck claims reads the table",
		Why:  "a sweep over millions of completed rows would slow everything (contract 5.14)",
		File: "internal/store/postgres_states.go",
		Old:  "AND worker_id IS NULL\nORDER BY handler_key, COALESCE(next_attempt_at, created_at), id",
		New:  "AND worker_id IS NULL",
		Test: test{Package: "./internal/store", Run: "^TestPostgresPlans$"},
	},
	{
		Name: "postgres: the planner judges whether a status is unclaimed",
		Why:  "statistics made in the midst of an outage would have each claim read the table (contract 5.2)",
		File: "internal/store/postgres_claim.go",
		Old:  "AND CASE WHEN processing_started_at IS NOT NULL OR next_attempt_at > $3::timestamptz THEN false ELSE true END",
		New:  "AND (next_attempt_at IS NULL OR next_attempt_at <= $3::timestamptz) AND processing_started_at IS NULL",
		Test: test{Package: "./internal/store", Run: "^TestPostgresClaimsKeepTheirPlanWhateverTheStatisticsSay$"},
	},
}
