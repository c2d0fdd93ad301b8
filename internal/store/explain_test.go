package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	postgresdriver "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// plan is a node of EXPLAIN (ANALYZE, FORMAT JSON).
type plan struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Removed  float64 `json:"Rows Removed by Filter"`
	// Hit and Read are pages, of this node and those below it.
	Hit   float64 `json:"Shared Hit Blocks"`
	Read  float64 `json:"Shared Read Blocks"`
	Plans []plan  `json:"Plans"`
}

// scans lists every access to a table as "node relation index".
func (p plan) scans() (found []string) {
	if p.Relation != "" && strings.Contains(p.Type, "Scan") || p.Index != "" {
		found = append(found, strings.Join(strings.Fields(p.Type+" "+p.Relation+" "+p.Index), " "))
	}
	for _, child := range p.Plans {
		found = append(found, child.scans()...)
	}
	return found
}

// read counts the rows that scans looked at.
func (p plan) read() float64 {
	count := 0.0
	if strings.Contains(p.Type, "Scan") && p.Relation != "" {
		count = (p.Rows + p.Removed) * p.Loops
	}
	for _, child := range p.Plans {
		count += child.read()
	}
	return count
}

// openLiteral opens a pool that puts the arguments into the statement: PREPARE
// and EXECUTE take nothing else.
func openLiteral(t *testing.T, dsn string) *gorm.DB {
	t.Helper()
	literal, err := gorm.Open(postgresdriver.New(postgresdriver.Config{DSN: dsn, PreferSimpleProtocol: true}), &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	pool, err := literal.DB()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return literal
}

// explain executes a statement as a prepared one, by this plan_cache_mode, and
// takes back what it did.
func explain(t *testing.T, literal *gorm.DB, p *postgres, mode, statement string, args ...any) (explained plan) {
	t.Helper()
	require.ErrorIs(t, literal.Transaction(func(tx *gorm.DB) error {
		connection := tx.Statement.ConnPool
		for _, statement := range []string{`SET LOCAL plan_cache_mode = ` + mode, `PREPARE planned AS ` + p.text(statement)} {
			_, err := connection.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		execute := `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE planned`
		if len(args) > 0 {
			places := make([]string, len(args))
			for i := range places {
				places[i] = fmt.Sprintf("$%d", i+1)
			}
			execute += "(" + strings.Join(places, ", ") + ")"
		}
		text, err := query(t.Context(), connection, execute, value[string], args...)
		require.NoError(t, err)
		_, err = connection.ExecContext(t.Context(), `DEALLOCATE planned`)
		require.NoError(t, err)
		var plans []struct{ Plan plan }
		require.NoError(t, json.Unmarshal([]byte(strings.Join(text, "\n")), &plans))
		explained = plans[0].Plan
		return errRollBack
	}), errRollBack)
	return explained
}

// Which index serves what, with 150,000 statuses that must not be looked at.
// The plans are those of a generic prepared statement, which never sees its
// arguments, as well as those made for them.
func TestPostgresPlans(t *testing.T) {
	dsn := testenv.PostgresDSN(t)
	db := testenv.OpenPostgres(t, dsn)
	literal := openLiteral(t, dsn)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	opened, err := New(db, models.Naming{})
	require.NoError(t, err)
	p := opened.(*postgres)
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, statement := range []string{
		// 100,000 of a paused key, 50,000 retries to come, 2,000 of the hot key.
		`INSERT INTO inbox_messages SELECT 'm' || n, 'kafka', 'order.placed', '/shop', '\x00', 'application/json', '{}', NULL,
			'2026-01-01 12:00:00+00'::timestamptz + n * interval '100 milliseconds' FROM generate_series(1, 152000) n`,
		`INSERT INTO inbox_handler_statuses (id, message_id, handler_key, created_at, next_attempt_at)
			SELECT gen_random_uuid(), 'm' || n,
				CASE WHEN n <= 100000 THEN 'paused' ELSE 'hot' END, '2026-01-01 12:00:00+00'::timestamptz + n * interval '100 milliseconds',
				CASE WHEN n > 100000 AND n <= 150000 THEN '2026-02-01 12:00:00+00'::timestamptz + n * interval '1 second' END
			FROM generate_series(1, 152000) n`,
		`INSERT INTO inbox_markers SELECT 'm' || n, 'hot', 't', '2026-01-01 12:00:00+00', '2026-01-01 12:00:00+00'::timestamptz + n * interval '10 seconds'
			FROM generate_series(1, 20000) n`,
		`INSERT INTO inbox_audit SELECT gen_random_uuid(), 'a', 'retry', '', '', '2026-01-01 12:00:00+00'::timestamptz + n * interval '10 seconds'
			FROM generate_series(1, 20000) n`,
		`INSERT INTO inbox_rejected_messages SELECT gen_random_uuid(), 'c', 't', 0, n, now(), NULL, NULL, '[]', 'bad',
			'2026-01-01 12:00:00+00'::timestamptz + n * interval '10 seconds' FROM generate_series(1, 20000) n`,
		`ANALYZE inbox_markers`, `ANALYZE inbox_audit`, `ANALYZE inbox_rejected_messages`,
		`ANALYZE inbox_messages`, `ANALYZE inbox_handler_statuses`,
	} {
		require.NoError(t, db.Exec(statement).Error)
	}
	claims, err := p.Claim(t.Context(), ClaimRequest{Now: now, Limits: []KeyLimit{{HandlerKey: "hot", Limit: 100}}})
	require.NoError(t, err)
	require.Len(t, claims.Claims, 100)
	var ids, places, outcomes, messageIDs []string
	var versions []int64
	for _, c := range claims.Claims {
		ids, places, messageIDs = append(ids, c.StatusID), append(places, c.Locator), append(messageIDs, c.MessageID)
		versions, outcomes = append(versions, c.Version), append(outcomes, "processed")
	}
	worker := uuid.NewString()
	require.NoError(t, p.Heartbeat(t.Context(), Worker{ID: worker, Host: "h"}, now))

	hashes := make([][]byte, len(messageIDs))
	for i := range hashes {
		hashes[i] = []byte{0}
	}
	n := len(ids)
	counts, flags, texts, times := make([]int32, n), make([]bool, n), make([]*string, n), make([]*time.Time, n)
	const (
		due       = "Index Scan inbox_handler_statuses inbox_handler_statuses_due"
		statusID  = "inbox_handler_statuses_pkey"
		messageID = "inbox_messages_pkey"
		byMessage = "inbox_handler_statuses_message_handler"

		rejectedID = "inbox_rejected_messages_pkey"
	)
	for _, each := range []struct {
		name, statement string
		args            []any
		expected        []string // each must serve some scan
		most            float64  // rows looked at
	}{
		{"claim", postgresClaim, []any{[]string{"hot", "idle"}, []int64{100, 100}, now, worker}, []string{due, "Tid Scan inbox_handler_statuses", messageID}, 600},
		{"claim without a worker", postgresClaimManual, []any{[]string{"hot"}, []int64{100}, now, nil}, []string{due, "Tid Scan inbox_handler_statuses", messageID}, 600},
		{"next due", postgresNextDue, []any{[]string{"hot", "paused", "idle"}, now}, []string{due}, 10},
		{"complete", postgresComplete, []any{now, ids, versions, outcomes, places}, []string{"Tid Scan inbox_handler_statuses"}, 200},
		{"complete moved rows", postgresCompleteMoved, []any{now, ids, versions, outcomes}, []string{statusID}, 300},
		{"settle", postgresSettle, []any{ids, versions, counts, counts, texts, times, flags}, []string{statusID}, 300},
		{"settle unlocked", postgresSettleUnlocked, []any{ids, versions, counts, counts, texts, times, flags}, []string{statusID}, 500},
		{"states", postgresStates, []any{ids}, []string{statusID}, 300},
		{"pending keys", pendingKeys, nil, []string{"inbox_handler_statuses_due"}, 10},
		{"pending of a key", postgresPendingOf, []any{"paused", 10}, []string{due}, 20},
		{"lock known messages", postgresAcceptLock, []any{messageIDs, hashes}, []string{messageID}, 300},
		{"handler keys of known messages", postgresAcceptKeys, []any{messageIDs}, []string{byMessage}, 300},
		{"siblings", postgresSiblings, []any{messageIDs, []string{"hot", "cold"}}, []string{byMessage}, 300},
		{"cleanup finds messages", postgresExpired, []any{now, time.Time{}, "", 1000, now, []string{"hot"}, []time.Time{now}}, []string{"inbox_messages_received_at", byMessage}, 5000},
		{"cleanup locks messages", postgresCleanupLock, []any{messageIDs}, []string{messageID}, 300},
		{"archive sizes", postgresExpiredSizes, []any{messageIDs}, []string{messageID}, 300},
		{"archive loads messages", postgresExpiredMessages, []any{messageIDs}, []string{messageID}, 300},
		{"archive loads statuses", postgresExpiredStatuses, []any{messageIDs}, []string{byMessage}, 300},
		{"archive deletes statuses", postgresDeleteStatuses, []any{ids, versions}, []string{statusID}, 300},
		{"archive deletes messages", postgresDeleteMessages, []any{messageIDs}, []string{messageID, byMessage}, 500},
		{"prune markers", postgresDeleteMarkers, []any{now, 100}, []string{"inbox_markers_expires_at", "Tid Scan inbox_markers"}, 300},
		{"prune audit rows", postgresDeleteAudit, []any{now, 100}, []string{"inbox_audit_occurred_at", "Tid Scan inbox_audit"}, 300},
		{"prune rejected messages", postgresDeleteRejected, []any{now, 100}, []string{"inbox_rejected_messages_rejected_at", "Tid Scan inbox_rejected_messages"}, 300},
		{"load a rejected message", postgresRejected.load, []any{worker}, []string{rejectedID}, 1},
		{"delete a rejected message", postgresRejected.remove, []any{worker}, []string{rejectedID}, 1},
		{"set a rejected message's reason", postgresRejected.reason, []any{worker, "bad"}, []string{rejectedID}, 1},
		{"cleanup deletes messages", postgresCleanupMessages, []any{messageIDs, now, []string{}, []time.Time{}}, []string{byMessage}, 700},
		{"cleanup deletes statuses", postgresCleanupStatuses, []any{messageIDs, now, []string{}, []time.Time{}}, []string{byMessage}, 300},
	} {
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			t.Run(each.name+" by "+mode, func(t *testing.T) {
				explained := explain(t, literal, p, mode, each.statement, each.args...)
				scans := strings.Join(explained.scans(), "\n")
				for _, expected := range each.expected {
					require.Contains(t, scans, expected)
				}
				require.NotContains(t, scans, "Seq Scan inbox_messages")
				require.NotContains(t, scans, "Seq Scan inbox_handler_statuses")
				require.NotContains(t, scans, "Seq Scan inbox_markers")
				require.NotContains(t, scans, "Seq Scan inbox_audit")
				require.NotContains(t, scans, "Seq Scan inbox_rejected_messages")
				require.LessOrEqual(t, explained.read(), each.most, scans)
				t.Logf("%.0f rows by\n%s", explained.read(), scans)
			})
		}
	}
}

// The fill factor and the choice of indexes are there so that claiming is a
// heap-only update: it must not write to any index.
func TestPostgresClaimsAreHeapOnlyUpdates(t *testing.T) {
	db := testenv.Postgres(t)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	opened, err := New(db, models.Naming{})
	require.NoError(t, err)
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	const rows = 1000
	batch := AcceptBatch{Now: now}
	for i := range rows {
		batch.Messages = append(batch.Messages, NewMessage{
			Message: models.Message{ID: fmt.Sprint(i)}, Handlers: []NewStatus{{HandlerKey: "mail"}},
		})
	}
	_, err = opened.Accept(t.Context(), batch)
	require.NoError(t, err)
	claims, err := opened.Claim(t.Context(), ClaimRequest{Now: now, Limits: []KeyLimit{{HandlerKey: "mail", Limit: rows}}})
	require.NoError(t, err)
	require.Len(t, claims.Claims, rows)
	var updates struct{ All, HeapOnly int64 }
	require.Eventually(t, func() bool { // sessions report their counts when they are idle
		err := db.Raw(`SELECT n_tup_upd AS "all", n_tup_hot_upd AS heap_only FROM pg_stat_user_tables WHERE relname = 'inbox_handler_statuses'`).Scan(&updates).Error
		return err == nil && updates.All == rows
	}, 30*time.Second, 20*time.Millisecond)
	require.Greater(t, updates.HeapOnly, int64(rows*9/10))
}

var errRollBack = fmt.Errorf("roll back")
