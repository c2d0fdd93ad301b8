package main

import "time"

func sqliteSuite(run string) test {
	return test{Package: "./internal/store", Run: "^TestSQLite$/" + run}
}

func postgresSuite(run string) test {
	return test{Package: "./internal/store", Run: "^TestPostgres$/" + run}
}

// hanging is a test that the defect makes wait for ever: as it is soon done
// without, it need not be waited for to the end.
func hanging(t test) test {
	t.Timeout = time.Minute
	return t
}

var storeMutants = []mutant{
	{
		Name: "postgres: completion ignores the version",
		Why:  "a stale worker would complete what another one runs (contract 3.2, 5.10)",
		File: "internal/store/postgres_complete.go",
		Old:  "WHERE s.id = c.id AND s.version = c.version AND s.completed_at IS NULL",
		New:  "WHERE s.id = c.id AND s.completed_at IS NULL",
		Test: postgresSuite("^Complete$"),
	},
	{
		Name: "sqlite: completion ignores the version",
		Why:  "a stale worker would complete what another one runs (contract 3.2, 5.10)",
		File: "internal/store/sqlite_complete.go",
		Old:  "WHERE {statuses}.id = c.id AND {statuses}.version = c.version AND",
		New:  "WHERE {statuses}.id = c.id AND",
		Test: sqliteSuite("^Complete$"),
	},
	{
		Name: "postgres: a transactional completion ignores the version",
		Why:  "a stale worker's transaction would commit its effects (contract 5.10)",
		File: "internal/store/postgres_complete.go",
		Old:  "WHERE s.id = $2::text::uuid AND s.version = $3::bigint AND s.completed_at IS NULL",
		New:  "WHERE s.id = $2::text::uuid AND s.version <= $3::bigint + 1 AND s.completed_at IS NULL",
		Test: postgresSuite("^Complete$"),
	},
	{
		Name: "postgres: failing ignores the version",
		Why:  "a stale worker would take a claim away from another (contract 3.2)",
		File: "internal/store/postgres_settle.go",
		Old:  "\nWHERE s.id = c.id AND s.version = c.version AND s.completed_at IS NULL",
		New:  "\nWHERE s.id = c.id AND s.completed_at IS NULL",
		Test: postgresSuite("^Settle$"),
	},
	{
		Name: "sqlite: failing ignores the version",
		Why:  "a stale worker would take a claim away from another (contract 3.2)",
		File: "internal/store/sqlite_settle.go",
		Old:  "WHERE {statuses}.id = c.id AND {statuses}.version = c.version AND",
		New:  "WHERE {statuses}.id = c.id AND",
		Test: sqliteSuite("^Settle$"),
	},
	{
		Name: "postgres: claims see what others have claimed",
		Why:  "two workers would run one status (contract 5.3)",
		File: "internal/store/postgres_claim.go",
		Old:  "CASE WHEN processing_started_at IS NOT NULL OR next_attempt_at > $3::timestamptz THEN",
		New:  "CASE WHEN next_attempt_at > $3::timestamptz THEN",
		Test: postgresSuite("^Claim$/^what_is_claimed"),
	},
	{
		Name: "sqlite: claims see what others have claimed",
		Why:  "two workers would run one status (contract 5.3)",
		File: "internal/store/sqlite_claim.go",
		Old:  "AND NOT is_waiting AND processing_started_at IS NULL`",
		New:  "AND NOT is_waiting`",
		Test: sqliteSuite("^Claim$/^what_is_claimed"),
	},
	{
		Name: "postgres: claims wait for locked rows",
		Why:  "one worker's transaction would hold up all others (contract 5.3)",
		File: "internal/store/postgres_claim.go",
		Old:  "FOR NO KEY UPDATE SKIP LOCKED",
		New:  "FOR NO KEY UPDATE",
		Test: hanging(postgresSuite("^Claim$/^rows_another")),
	},
	{
		Name: "postgres: a released worker may claim",
		Why:  "its claims would never be recovered (contract 5.9)",
		File: "internal/store/postgres_claim.go",
		Old:  "AND released_at IS NULL FOR KEY SHARE",
		New:  "FOR KEY SHARE",
		Test: postgresSuite("^Claim$"),
	},
	{
		Name: "sqlite: the unique constraint is gone",
		Why:  "two accepts at once would leave two rows for one handler (contract 3.2)",
		File: "models/sql/sqlite/0001_inbox.sql",
		Old:  `CREATE UNIQUE INDEX IF NOT EXISTS "${prefix}handler_statuses_message_handler"`,
		New:  `CREATE INDEX IF NOT EXISTS "${prefix}handler_statuses_message_handler"`,
		Test: sqliteSuite("accept"),
	},
	{
		Name: "postgres: a known message is not locked",
		Why:  "cleanup would delete it with the status an accept is adding (contract 4.2)",
		File: "internal/store/postgres_accept.go",
		Old:  "\nFOR NO KEY UPDATE OF m`",
		New:  "`",
		Test: postgresSuite("^Cleanup_against_accept$"),
	},
	{
		Name: "another type under a known ID is a duplicate",
		Why:  "a different message would be dropped silently (contract 4.3)",
		File: "internal/store/accept_known.go",
		Old:  "alike := stored.messageType == message.Type && stored.source == message.Source",
		New:  "alike := stored.source == message.Source",
		Test: sqliteSuite("^Accept$"),
	},
	{
		Name: "other content under a known ID is stored as a duplicate whatever the policy",
		Why:  "what was to be kept as rejected would be gone (contract 4.3)",
		File: "internal/store/accept_known.go",
		Old:  "if alike && !(stored.contentDiffers && batch.RejectDiffering) {",
		New:  "if alike {",
		Test: accepting("TestOtherContentUnderAKnownIDIsRejectedByPolicy"),
	},
	{
		Name: "channels share their IDs",
		Why:  "who writes to one channel would choose what another's handlers run (contract 4.4)",
		File: "acceptor/validate.go",
		Old:  "Namespace: cmp.Or(a.namespaces[m.Channel], m.Channel)",
		New:  "Namespace: cmp.Or(a.namespaces[m.Channel])",
		Test: accepting("TestMessageOfOneChannelNeverRunsAnothersHandlers"),
	},
	{
		Name: "a marker of one channel counts on another",
		Why:  "who writes to one channel would have another's message skipped (contract 8.3)",
		File: "idempotent/wrapped.go",
		Old:  "Namespace: cmp.Or(w.namespace, w.channel)",
		New:  `Namespace: cmp.Or("", "")`,
		Test: receiving("TestMessageOfOneChannelIsNoDuplicateOnAnother"),
	},
	{
		Name: "postgres: a status goes to any message of its ID in the batch",
		Why:  "a handler would run another channel's message (contract 4.2)",
		File: "internal/store/postgres_accept.go",
		Old:  "JOIN fresh ON fresh.id = s.message_id AND fresh.namespace = COALESCE(s.namespace, ($18::text[])[1])",
		New:  "JOIN fresh ON fresh.id = s.message_id",
		Test: postgresSuite("^Accept$"),
	},
	{
		Name: "postgres: a message of another namespace is locked as the known one",
		Why:  "a new message would be judged by another channel's (contract 4.3)",
		File: "internal/store/postgres_accept.go",
		Old:  "JOIN {messages} m ON m.id = k.id AND m.namespace = k.namespace",
		New:  "JOIN {messages} m ON m.id = k.id",
		Test: postgresSuite("^Accept$"),
	},
	{
		Name: "legacy keys are not looked at",
		Why:  "a renamed handler would run old messages again (contract 4.2)",
		File: "internal/store/accept_known.go",
		Old:  "return slices.ContainsFunc(n.LegacyKeys, func(key string) bool { return has[handledBy{number, key}] })",
		New:  "return slices.ContainsFunc(n.LegacyKeys, func(key string) bool { return has[handledBy{number + 1, key}] })",
		Test: sqliteSuite("^Accept$"),
	},
	{
		Name: "retention is ignored when a message comes again",
		Why:  "an old redelivery would run again handlers whose rows were cleaned (contract 4.2)",
		File: "internal/store/accept_known.go",
		Old:  "return n.Retention > 0 && receivedAt.Before(now.Add(-n.Retention))",
		New:  "return n.Retention > 0 && receivedAt.Before(now.Add(-1000*n.Retention))",
		Test: sqliteSuite("^Accept$"),
	},
	{
		Name: "sqlite: a lease is given up by anybody",
		Why:  "a cleaner that lost its lease would take the next one's away (contract 5.3, 6.1)",
		File: "internal/store/sqlite_leases.go",
		Old:  "DELETE FROM {locks} WHERE name = ?1 AND owner_id = ?2",
		New:  "DELETE FROM {locks} WHERE name = ?1 AND ?2 <> ''",
		Test: sqliteSuite("^Leases$"),
	},
	{
		Name: "postgres: a lease is given up by anybody",
		Why:  "a cleaner that lost its lease would take the next one's away (contract 5.3, 6.1)",
		File: "internal/store/postgres_leases.go",
		Old:  "DELETE FROM {locks} WHERE name = $1 AND owner_id = $2::text::uuid",
		New:  "DELETE FROM {locks} WHERE name = $1 AND $2 <> ''",
		Test: postgresSuite("^Leases$"),
	},
	{
		Name: "postgres: a lease is taken while it is held",
		Why:  "two workers would do what one must (contract 5.3)",
		File: "internal/store/postgres_leases.go",
		Old:  "WHERE l.owner_id = EXCLUDED.owner_id OR l.expires_at <= clock_timestamp()",
		New:  "WHERE l.owner_id = EXCLUDED.owner_id OR l.expires_at <= clock_timestamp() + interval '1 day'",
		Test: postgresSuite("^Leases$"),
	},
	{
		Name: "postgres: cleanup deletes what has not completed",
		Why:  "poisoned and pending statuses are never deleted automatically (contract 6.4)",
		File: "internal/store/postgres_cleanup.go",
		Old:  "NOT COALESCE(s.completed_at < COALESCE(own.cutoff, $2::timestamptz), false)) = 0",
		New:  "NOT COALESCE(s.completed_at < COALESCE(own.cutoff, $2::timestamptz), true)) = 0",
		Test: postgresSuite("^Cleanup$"),
	},
	{
		Name: "an error text is stored as it is",
		Why:  "recording a failure would fail on NUL or invalid UTF-8 (contract 3.6)",
		File: "internal/store/postgres_settle.go",
		Old:  "clean := SanitizeError(*text)",
		New:  "clean := *text",
		Test: postgresSuite("^Settle$"),
	},
	{
		Name: "postgres: recovery waits for running transactions",
		Why:  "one open transaction would hold up the recovery of everything (contract 5.9)",
		File: "internal/store/postgres_settle.go",
		Old:  "AND completed_at IS NULL FOR NO KEY UPDATE SKIP LOCKED",
		New:  "AND completed_at IS NULL FOR NO KEY UPDATE",
		Test: hanging(postgresSuite("^Settle$/^SettleUnlocked")),
	},
}
