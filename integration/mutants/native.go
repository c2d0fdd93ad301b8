package main

func speaking(run string) test { return test{Package: "./internal/pgxtx", Run: "^" + run + "$"} }

func storing(run string) test { return test{Package: "./internal/store", Run: run} }

var nativeMutants = []mutant{
	{
		Name: "a connection is lent past its transaction",
		Why:  "who has not noticed that the context has undone it would write outside of any (contract 5.10, 5.11)",
		File: "internal/pgxtx/pgxtx.go",
		Old:  `if _, err := t.Tx.ExecContext(ctx, "", &l); !l.given {`,
		New: `if err := t.conn.Raw(func(c any) error {
		_, _, _ = l.RewriteQuery(ctx, c.(*stdlib.Conn).Conn(), "", nil)
		return nil
	}); !l.given {`,
		Test: hanging(speaking("TestNothingIsWrittenOnceTheTransactionHasEnded|TestContextThatEndsBesideAWriterLeavesNothing")),
	},
	{
		Name: "a transaction keeps its connection",
		Why:  "a few accepts of large contents would empty the pool, and everything wait for ever",
		File: "internal/pgxtx/pgxtx.go",
		Old:  "_ = t.conn.Close() // an error",
		New:  "_ = t.conn // an error",
		Test: hanging(speaking("TestConnectionIsGivenBack")),
	},
	{
		Name: "an ended transaction stays on its context",
		Why:  "a process that accepts with one long context would keep something of each accept",
		File: "internal/pgxtx/pgxtx.go",
		Old:  "	t.detach()\n",
		New:  "",
		Test: speaking("TestTransactionThatHasEndedLeavesNothingOnALongContext"),
	},
	{
		Name: "pgx is spoken to past a tracer",
		Why:  "who traces statements would not see these",
		File: "internal/pgxtx/pgxtx.go",
		Old:  "bare: config.Tracer == nil,",
		New:  "bare: true,",
		Test: speaking("TestWhereSomebodyStandsBetweenThereIsNone"),
	},
	{
		Name: "statements are prepared behind a pooler that keeps none",
		Why:  "accepts of large contents would fail behind it",
		File: "internal/pgxtx/pgxtx.go",
		Old:  "prepares: config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement",
		New:  "prepares: true",
		Test: speaking("TestWhereSomebodyStandsBetweenThereIsNone"),
	},
	{
		Name: "a statement is prepared before its savepoint",
		Why:  "one that is wrong would abort the transaction of the whole group (contract 5.11)",
		File: "internal/pgxtx/pipe.go",
		Old:  "		if _, err := c.Exec(ctx, strings.Join(before, \"; \")); err != nil {\n			return 0, false, err\n		}\n",
		New:  "		if _, err := known.prepare(ctx, c, statement); err != nil {\n			return 0, false, err\n		}\n		if _, err := c.Exec(ctx, strings.Join(before, \"; \")); err != nil {\n			return 0, false, err\n		}\n",
		Test: speaking("TestStatementThatIsWrongFailsBehindThoseBeforeIt"),
	},
	{
		Name: "a piped statement that fails is kept as it was prepared",
		Why:  "after a change of the schema it would fail on that connection for ever",
		File: "internal/pgxtx/pipe.go",
		Old:  "		known.forget(ctx, c, statement)\n",
		New:  "		_ = known\n",
		Test: speaking("TestStatementIsPreparedAnewAfterAFailure"),
	},
	{
		Name: "an accept that fails is kept as it was prepared",
		Why:  "it would fail on that connection for ever (contract 4.1)",
		File: "internal/store/postgres_accept_native.go",
		Old:  "_ = c.Deallocate(ctx, statement)",
		New:  "_ = c",
		Test: storing("^TestAcceptOfLargeContentsIsPreparedAnewAfterAFailure$"),
	},
	{
		Name: "large contents need pgx",
		Why:  "behind a pooler or a tracer they could not be accepted",
		File: "internal/store/postgres_accept_native.go",
		Old:  "if errors.Is(err, pgxtx.ErrUnavailable) {",
		New:  "if errors.Is(err, pgxtx.ErrUnavailable) && tx != nil {",
		Test: storing("^TestLargeContentsAreAcceptedWhereNobodyMaySpeakToPgx$"),
	},
	{
		Name: "an accept's buffer is another's while it is sent",
		Why:  "messages would be stored with others' contents (contract 4.4)",
		File: "internal/store/postgres_accept.go",
		Old:  "	defer done()\n",
		New:  "	done()\n",
		Test: storing("^TestPostgresSpeakingToPgx$/^Concurrent_accepts$/^contents_of"),
	},
	{
		Name: "a batch of empty contents has none",
		Why:  "messages without a body could not be accepted",
		File: "internal/store/postgres_accept.go",
		Old:  "return &[]byte{} }}",
		New:  "return new([]byte) }}",
		Test: storing("^TestPostgresSpeakingToPgx$/^Accept$/^empty_content_and"),
	},
	{
		Name: "what an accept does not say is new is taken for new",
		Why:  "a duplicate would be told as new, and get no rows for new handlers (contract 4.5)",
		File: "internal/store/postgres_accept.go",
		Old:  "	tellBelow := n\n",
		New:  "	tellBelow := 0\n",
		Test: storing("^TestPostgres$/^Accept$"),
	},
	{
		Name: "what vanished is inserted without its number",
		Why:  "an accept that cleanup has come between would fail (contract 4.5)",
		File: "internal/store/accept.go",
		Old:  "batch.Claimer, round > 0, batch.Now)",
		New:  "batch.Claimer, false, batch.Now)",
		Test: storing("^TestPostgres$/^Concurrent_accepts$/^a_message_that_vanishes"),
	},
	{
		Name: "what vanished is inserted behind what follows it",
		Why:  "the sequence would not follow the batch (contract 5.12)",
		File: "internal/store/accept.go",
		Old:  "statuses, results, batch, vanished)",
		New:  "statuses, results, batch, vanished && false)",
		Test: storing("^TestPostgres$/^Concurrent_accepts$/^a_message_that_vanishes"),
	},
}
