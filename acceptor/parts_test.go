package acceptor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// eventIDs returns the IDs of a record with many events.
func eventIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("event-%05d", i)
	}
	return ids
}

// inOrder returns the message IDs of all statuses in the order of acceptance.
func (r *receiving) inOrder() []string {
	var ids []string
	require.NoError(r.t, r.db.Model(&models.HandlerStatus{}).Order("sequence").Pluck("message_id", &ids).Error)
	return ids
}

func TestRecordOfManyEventsKeepsTheirOrder(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		ids := eventIDs(6000) // more rows than two transactions take
		twice := at(1, ids[0], ids[5999], "last")
		results := r.accept(at(0, ids...), twice, bad(2, errMangled))
		require.Equal(t, "durable, durable, durable bad", dispositions(results))
		require.Equal(t, []int{6000, 0, 1, 2}, []int{results[0].Accepted, results[0].Duplicates, results[1].Accepted,
			results[1].Duplicates})
		require.Equal(t, append(ids, "last"), r.inOrder())
		require.Len(t, r.rejected(), 1)
		require.Equal(t, 1, r.woken)
	})
}

// errorAt makes the database fail when it is to store that message.
func errorAt(t *testing.T, d *inboxtest.Database, id string) {
	t.Helper()
	inboxtest.Exec(t, d.DB,
		`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END $$`)
	inboxtest.Exec(t, d.DB,
		fmt.Sprintf(`CREATE TRIGGER full_disk AFTER INSERT ON inbox_messages FOR EACH ROW WHEN (NEW.id = '%s') EXECUTE FUNCTION full_disk()`, id))
}

func TestPartlyFailedAcceptResumesWhereItFailed(t *testing.T) {
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

// atMost makes the database refuse statements that insert more than that many messages, as a
// database does that would take too long for them.
func atMost(t *testing.T, d *inboxtest.Database, messages int) {
	t.Helper()
	inboxtest.Exec(t, d.DB, fmt.Sprintf(`CREATE FUNCTION too_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT count(*) FROM added) > %d THEN RAISE EXCEPTION 'too slow' USING ERRCODE = '57014'; END IF; RETURN NULL; END $$`, messages))
	inboxtest.Exec(t, d.DB,
		`CREATE TRIGGER too_slow AFTER INSERT ON inbox_messages REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION too_slow()`)
}

// TestRecordTooLargeForOneTransactionUsesSeveral proves contract 7.2: however little the
// database can take, and whatever else is accepted meanwhile, each try gets further.
func TestRecordTooLargeForOneTransactionUsesSeveral(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		atMost(t, d, 20)
		ids := eventIDs(1000)
		known := 0
		for try := 0; known < len(ids); try++ {
			_, err := r.AcceptRecords(t.Context(), "c", []envelope.Received{at(0, ids...)})
			stored := len(r.messages()) - try*5
			if try > 8 { // a transaction is small enough by then, and grows only while it is
				require.Greater(t, stored, known)
			}
			if known = stored; err == nil {
				require.Len(t, ids, known)
				break
			}
			require.ErrorContains(t, err, "too slow")
			for i := range 5 {
				elsewhere := at(int64(try*5+i), fmt.Sprint("other-", try, "-", i))
				elsewhere.Record.Partition = 1
				r.accept(elsewhere)
			}
		}
		var all []string
		for _, id := range r.inOrder() {
			if strings.HasPrefix(id, "event-") {
				all = append(all, id)
			}
		}
		require.Equal(t, ids, all)
	})
}

func TestAcceptSizeRecoversAfterAnOutage(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		ids := eventIDs(3000)
		errorAt(t, d, ids[0])
		for range 20 { // down to one message per transaction
			_, err := r.AcceptRecords(t.Context(), "c", []envelope.Received{at(0, ids...)})
			require.ErrorContains(t, err, "disk full")
		}
		inboxtest.Exec(t, d.DB, `DROP TRIGGER full_disk ON inbox_messages`)
		transactions := func(from string) (found []string) {
			require.NoError(t, d.DB.Raw(`SELECT DISTINCT xmin::text FROM inbox_messages WHERE id >= ?`, from).Scan(&found).Error)
			return found
		}
		r.accept(at(0, ids...))
		require.Greater(t, len(transactions("")), 20)
		require.Less(t, len(transactions("")), 100)
		next := at(1)
		for i := range 1000 {
			next.Messages = append(next.Messages, at(1, fmt.Sprintf("next-%05d", i)).Messages...)
		}
		r.accept(next)
		require.Len(t, transactions("next"), 1, "what comes next has all again")
	})
}

// Contract 15: an outage of the Sealer says nothing of how much a transaction can store.
func TestAcceptSizeStaysAfterAnOutageOfTheSealer(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		box := inboxtest.NewBox("k1")
		r := receiveBy(t, d, sealBy(box))
		box.Fail(func(handler.Identity) error { return errors.New("key server is down") }, nil)
		ids := eventIDs(1000)
		for range 20 {
			_, err := r.AcceptRecords(t.Context(), "c", []envelope.Received{at(0, ids...)})
			require.ErrorContains(t, err, "key server is down")
		}
		box.Fail(nil, nil)
		r.accept(at(0, ids...))
		var transactions int
		require.NoError(t, d.DB.Raw(`SELECT count(DISTINCT xmin::text) FROM inbox_messages`).Scan(&transactions).Error)
		require.Equal(t, 1, transactions)
	})
}

// granting grants every status a slot, unless it refuses, and counts what is delivered.
type granting struct {
	refuses   bool
	mu        sync.Mutex
	delivered int
	unclaimed map[string]int
}

func (g *granting) Worker() string { return uuid.NewString() } // a worker without a row
func (g *granting) Bytes() int     { return 1 << 20 }

func (g *granting) Granted(string) int {
	if g.refuses {
		return 0
	}
	return 1 << 20
}
func (g *granting) Abandon(lost bool) {}
func (g *granting) Deliver(claims []store.Claim, unclaimed map[string]int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.delivered++
	for key, n := range unclaimed {
		g.unclaimed[key] += n
	}
}

func TestEachPartOfARecordIsDispatched(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		g := &granting{unclaimed: map[string]int{}}
		r := receiveBy(t, d, func(cfg *acceptor.Config) {
			cfg.Reserve = func(map[string]int, int) acceptor.Reservation { return g }
		})
		require.Equal(t, 6000, r.accept(at(0, eventIDs(6000)...))[0].Accepted)
		require.Equal(t, 3, g.delivered)
		require.Equal(t, map[string]int{"a": 6000}, g.unclaimed)
		require.Zero(t, r.woken, "the processor knows of all of them")
	})
}

// losing loses the response to each commit of an accept.
type losing struct{ store.Acceptor }

func (l losing) Accept(ctx context.Context, batch store.AcceptBatch) ([]store.Accepted, error) {
	_, err := l.Acceptor.Accept(ctx, batch)
	return nil, errors.Join(err, store.FailedCommit(errors.New("the answer is lost")))
}

// TestLostAcceptNotifiesUnlessProcessorReconciles proves contract 4.7 and 5.9: the processor
// looks for claims that are lost, and does not find what was not to be claimed.
func TestLostAcceptNotifiesUnlessProcessorReconciles(t *testing.T) {
	for name, c := range map[string]struct {
		by    *granting
		woken int
	}{"claimed": {&granting{}, 0}, "not claimed": {&granting{refuses: true}, 1}, "without a processor": {nil, 1}} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				r := receiveBy(t, d, func(cfg *acceptor.Config) {
					cfg.Store = losing{cfg.Store}
					if c.by != nil {
						cfg.Reserve = func(map[string]int, int) acceptor.Reservation { return c.by }
					}
				})
				_, err := r.Accept(t.Context(), inboxtest.Message("1"))
				require.ErrorContains(t, err, "the answer is lost")
				require.Equal(t, c.woken, r.woken)
			})
		})
	}
}

func TestConflictRepeatedInAnotherPartIsBad(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		ids := eventIDs(6000)
		r.accept(at(0, ids[0]))
		first, second := at(1, ids...), at(2, "last", ids[0])
		first.Messages[0].Source, second.Messages[1].Source = "elsewhere", "elsewhere"
		results := r.accept(first, second)
		require.Equal(t, "durable bad, durable bad", dispositions(results))
		require.Equal(t, []int{5999, 1}, []int{results[0].Accepted, results[1].Accepted})
		require.Len(t, r.rejected(), 2)
	})
}

// TestRecordRefusedInALaterPartIsBad proves contract 7.2: what was stored before the
// database refused the rest stays.
func TestRecordRefusedInALaterPartIsBad(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, nil)
		refuse(t, d)
		ids := eventIDs(3000)
		ids[2900] = "no-way"
		results := r.accept(at(0, ids...), at(1, "next"))
		require.Equal(t, "durable bad, durable", dispositions(results))
		require.Len(t, r.rejected(), 1)
		stored := r.messages()
		require.Contains(t, stored, "next")
		require.Contains(t, stored, ids[0])
		require.NotContains(t, stored, "no-way")
	})
}

func TestRetriedAcceptCountsMessagesOnce(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		reported := map[string]int{}
		r := receiveBy(t, d, func(cfg *acceptor.Config) {
			cfg.Hooks.OnAccepted = func(_ context.Context, e handler.AcceptedEvent) { reported[e.MessageID]++ }
		})
		ids := eventIDs(6000)
		errorAt(t, d, ids[5500])
		_, err := r.AcceptRecords(t.Context(), "c", []envelope.Received{at(0, ids...)})
		require.ErrorContains(t, err, "disk full")
		require.EqualValues(t, len(r.messages()), r.counters.Load(telemetry.Accepted))
		inboxtest.Exec(t, d.DB, `DROP TRIGGER full_disk ON inbox_messages`)
		r.accept(at(0, ids...))
		require.EqualValues(t, 6000, r.counters.Load(telemetry.Accepted))
		require.Len(t, reported, 6000)
		for id, n := range reported {
			require.Equal(t, 1, n, id)
		}
	})
}
