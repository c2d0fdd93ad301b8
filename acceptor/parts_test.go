package acceptor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// eventIDs are those of a record with many events.
func eventIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("event-%05d", i)
	}
	return ids
}

// inOrder are the message IDs of all statuses, as they are due.
func (r *receiving) inOrder() []string {
	var ids []string
	require.NoError(r.t, r.db.Model(&models.HandlerStatus{}).Order("sequence").Pluck("message_id", &ids).Error)
	return ids
}

func TestRecordOfManyEventsIsStoredInItsOrder(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		ids := eventIDs(6000) // more rows than two transactions take
		twice := at(1, ids[0], ids[5999], "last")
		results := r.accept(at(0, ids...), twice, bad(2, errMangled))
		require.Equal(t, "durable, durable, durable bad", dispositions(results))
		require.Equal(t, []int{6000, 0, 1, 2}, []int{results[0].Accepted, results[0].Duplicates, results[1].Accepted, results[1].Duplicates})
		require.Equal(t, append(ids, "last"), r.inOrder())
		require.Len(t, r.rejected(), 1)
		require.Equal(t, 1, r.woken)
	})
}

// errorAt makes the database fail when it is to store that message.
func errorAt(t *testing.T, d *inboxtest.Database, id string) {
	t.Helper()
	inboxtest.Exec(t, d.DB, `CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END $$`)
	inboxtest.Exec(t, d.DB, fmt.Sprintf(`CREATE TRIGGER full_disk AFTER INSERT ON inbox_messages FOR EACH ROW WHEN (NEW.id = '%s') EXECUTE FUNCTION full_disk()`, id))
}

func TestAcceptThatFailedHalfWayGoesOnFromThere(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		ids := eventIDs(6000)
		errorAt(t, d, ids[5500])
		records := []envelope.Received{at(0, ids...), bad(1, errMangled)}
		_, err := r.AcceptRecords(t.Context(), "c", records)
		require.ErrorContains(t, err, "disk full")
		stored := len(r.messages())
		require.Equal(t, ids[:stored], r.inOrder())
		require.NotZero(t, stored)
		require.Less(t, stored, 5500)
		require.Empty(t, r.rejected(), "it is behind what is not stored")

		inboxtest.Exec(t, d.DB, `DROP TRIGGER full_disk ON inbox_messages`)
		results := r.accept(records...)
		require.Equal(t, []int{6000 - stored, stored}, []int{results[0].Accepted, results[0].Duplicates})
		require.Equal(t, ids, r.inOrder())
		require.Len(t, r.rejected(), 1)
	})
}

// Contract 7.2: however slow the database is, each try gets further.
func TestRecordThatNoTransactionStoresInTimeIsStoredInSeveral(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, func(o *acceptor.Options) { o.StatementTimeout = 500 * time.Millisecond })
		inboxtest.Exec(t, d.DB, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.001); RETURN NULL; END $$`)
		inboxtest.Exec(t, d.DB, `CREATE TRIGGER slow AFTER INSERT ON inbox_messages FOR EACH ROW EXECUTE FUNCTION slow()`)
		ids := eventIDs(2000) // takes over two seconds
		var err error
		for range 100 {
			if _, err = r.AcceptRecords(t.Context(), "c", []envelope.Received{at(0, ids...)}); err == nil {
				break
			}
		}
		require.NoError(t, err, "the last of 100 tries")
		require.Equal(t, ids, r.inOrder())
	})
}

func TestSizeOfAcceptsRecoversAfterAnOutage(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		ids := eventIDs(3000)
		errorAt(t, d, ids[0])
		for range 20 { // down to one message for each transaction
			_, err := r.AcceptRecords(t.Context(), "c", []envelope.Received{at(0, ids...)})
			require.ErrorContains(t, err, "disk full")
		}
		inboxtest.Exec(t, d.DB, `DROP TRIGGER full_disk ON inbox_messages`)
		r.accept(at(0, ids...))
		require.Equal(t, ids, r.inOrder())
		var transactions []string
		require.NoError(t, d.DB.Raw(`SELECT DISTINCT xmin::text FROM inbox_messages`).Scan(&transactions).Error)
		require.Greater(t, len(transactions), 20)
		require.Less(t, len(transactions), 100)
	})
}
