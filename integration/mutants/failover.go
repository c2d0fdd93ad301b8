package main

import "time"

// failingOver is a test with a primary and a synchronous standby of its own.
func failingOver(run string) test {
	t := endToEnd(run)
	t.Timeout = 3 * time.Minute
	return t
}

const (
	acknowledging = "TestWhatIsAcknowledgedSurvivesTheLossOfThePrimary"
	notWaitedFor  = "TestCommitWhoseStandbyWasNotWaitedForIsNoSuccess"
)

var failoverMutants = []mutant{
	{
		Name: "a marker that is there is not locked",
		Why:  "a duplicate would be acknowledged whose first delivery a failover undoes (contract 2, 8.2)",
		File: "internal/store/postgres_markers.go",
		Old:  "DO UPDATE SET message_type = EXCLUDED.message_type WHERE false",
		New:  "DO NOTHING",
		Test: failingOver(acknowledging),
	},
	{
		Name: "a marker is looked up without a lock",
		Why:  "what is on the primary alone would be acknowledged, and a failover undo it (contract 2, 8.2)",
		File: "internal/store/postgres_markers.go",
		Old:  "	if err == nil && len(found) > 0 {\n		found, err = confirmed(",
		New:  "	if err == nil && len(found) < 0 {\n		found, err = confirmed(",
		Test: failingOver(acknowledging),
	},
	{
		Name: "gormstore: a duplicate is rolled back",
		Why:  "only a commit waits for the standby (contract 2, 8.2)",
		File: "idempotent/gormstore/run.go",
		Old:  "		if err := tx.Commit(); err != nil {\n			return false, store.IsSerialization(err), naming(w.Key, fmt.Errorf(\"confirm its marker",
		New:  "		if err := error(nil); err != nil {\n			return false, store.IsSerialization(err), naming(w.Key, fmt.Errorf(\"confirm its marker",
		Test: failingOver(acknowledging),
	},
	{
		Name: "inline: a duplicate is rolled back",
		Why:  "only a commit waits for the standby (contract 2, 8.2)",
		File: "internal/inplace/attempt.go",
		Old:  "			if failed := commit(t); failed != nil {",
		New:  "			if failed := error(nil); failed != nil {",
		Test: failingOver(acknowledging),
	},
	{
		Name: "a completed status is read back without a lock",
		Why:  "a message would be reported as processed whose effects a failover undoes (contract 2, 5.10)",
		File: "internal/store/postgres_states.go",
		Old:  "if err == nil && len(ended) > 0 {",
		New:  "if err == nil && len(ended) < 0 {",
		Test: failingOver(acknowledging),
	},
	{
		Name: "a known message is not locked",
		Why:  "Accept would report as stored what a failover undoes (contract 2)",
		File: "internal/store/postgres_accept.go",
		Old:  "ORDER BY k.position\nFOR NO KEY UPDATE OF m`",
		New:  "ORDER BY k.position`",
		Test: failingOver(acknowledging),
	},
	{
		Name: "a rejected record that is there is not locked",
		Why:  "its offset would be committed, and a failover undo it (contract 2, 7.4)",
		File: "internal/store/postgres_accept.go",
		Old:  "record_timestamp) DO UPDATE SET reason = EXCLUDED.reason WHERE false`",
		New:  "record_timestamp) DO NOTHING`",
		Test: failingOver(acknowledging),
	},
	{
		Name: "a gap that is there is not locked",
		Why:  "it would be passed without a trace after a failover (contract 2, 7.5)",
		File: "internal/store/gaps.go",
		Old:  "to_offset) DO UPDATE SET reason = EXCLUDED.reason WHERE false`",
		New:  "to_offset) DO NOTHING`",
		Test: failingOver(acknowledging),
	},
	{
		Name: "a commit that was not waited for succeeds",
		Why:  "Accept and handlers' transactions would report as stored what a failover undoes (contract 2)",
		File: "internal/pgxtx/commit.go",
		Old:  "if notice.Routine == \"SyncRepWaitForLSN\" {",
		New:  "if notice.Routine == \"\" {",
		Test: failingOver(notWaitedFor),
	},
	{
		Name: "a commit that was not waited for is taken for refused",
		Why:  "what may be stored would be run again and charged (contract 2, 5.10)",
		File: "internal/store/errors.go",
		Old:  "case errors.Is(err, pgxtx.ErrUnconfirmed), errors.Is(err, context.DeadlineExceeded)",
		New:  "case errors.Is(err, pgxtx.ErrUnconfirmed) && false, errors.Is(err, context.DeadlineExceeded)",
		Test: storing("^TestErrorClasses$"),
	},
	{
		Name: "two rejected records of one place fail their batch",
		Why:  "a partition would stand still before it (contract 7.4)",
		File: "internal/store/rejected.go",
		Old:  "return byCoordinates(a, b) == 0",
		New:  "return false",
		Test: storing("^TestPostgres$/^Accept$/rejected_records_are_stored"),
	},
}
