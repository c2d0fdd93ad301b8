package ops_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/ops"
)

// TestNoStatementCreatesMultixacts proves contract 4.1: no two transactions of an inbox share a row's lock,
// for which PostgreSQL would use up a number that the whole server has 4 billion of.
func TestNoStatementCreatesMultixacts(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		first := inboxtest.Handlers(inboxtest.Do("plain", inboxtest.Nothing), inbox.Tx("tx",
			func(context.Context, *gorm.DB, inboxtest.Bytes) error { return nil }))
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), log, first)
		inboxtest.Exec(t, d.DB, `CREATE EXTENSION IF NOT EXISTS pageinspect`)
		t.Cleanup(func() { d.DB.Exec(`DROP EXTENSION pageinspect`) })
		for _, table := range []string{"messages", "handler_statuses", "workers", "markers"} { // pages keep what they had
			inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_`+table+` SET (autovacuum_enabled = false)`)
		}
		inboxtest.Start(t, ib)
		const callers, calls = 8, 100
		together := func(work func(caller, call int) error) {
			t.Helper()
			for _, err := range racetest.Together(callers, func(i int) error {
				for call := range calls {
					if err := work(i, call); err != nil {
						return err
					}
				}
				return nil
			}) {
				require.NoError(t, err)
			}
		}
		accept := func(id string) error {
			_, err := ib.Accept(t.Context(), inboxtest.Message(id))
			return err
		}
		together(func(caller, call int) error { return accept(fmt.Sprint("new ", caller, call)) }) // and local dispatch
		together(func(_, call int) error { return accept(fmt.Sprint("same ", call)) })
		together(func(caller, call int) error {
			return d.DB.Transaction(func(tx *gorm.DB) error {
				id := fmt.Sprint("in a transaction ", caller, call)
				if call%2 == 0 {
					id = fmt.Sprint("same ", call)
				}
				_, err := ib.AcceptTx(t.Context(), tx, inboxtest.Message(id))
				return err
			})
		})
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all were completed")

		markers, err := gormstore.New(d.DB)
		require.NoError(t, err)
		together(func(caller, call int) error {
			key := idempotent.Key{MessageID: fmt.Sprint(call), HandlerKey: "inline"}
			_, err := markers.Run(t.Context(), idempotent.Run{Key: key, Retention: time.Hour},
				func(context.Context) error { return nil })
			if err == nil && caller > 0 {
				_, err = markers.Processed(t.Context(), key)
			}
			return err
		})

		later := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("plain", inboxtest.Nothing),
			inboxtest.Do("late", inboxtest.Nothing)))
		o, err := later.Ops(patient)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := o.Backfill(t.Context(), ada, "late", time.Now().Add(-time.Hour), time.Time{}, ops.Bulk{ChunkSize: 10})
			done <- err
		}()
		together(func(caller, call int) error { return accept(fmt.Sprint("new ", (caller+1)%callers, call)) })
		require.NoError(t, <-done)

		for _, table := range []string{"messages", "handler_statuses", "workers", "markers", "locks", "handlers"} {
			var made int64
			const isMulti = 0x1000
			require.NoError(t, d.DB.Raw(`SELECT count(*) FROM generate_series(0, pg_relation_size(?) / 8192 - 1) AS page,
				heap_page_items(get_raw_page(?, page::integer)) WHERE t_infomask & ? <> 0`, "inbox_"+table, "inbox_"+table,
				isMulti).Scan(&made).Error)
			require.Zero(t, made, table)
		}
		for _, entry := range logs.All() {
			require.False(t, strings.Contains(entry.Message, "failing"), entry.Message)
		}
	})
}
