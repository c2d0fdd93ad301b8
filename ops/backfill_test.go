package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// program is one version of an application's program on a database.
type program struct {
	*inbox.Inbox
	t   *testing.T
	ops *ops.Ops
}

// versions makes the programs of one application, which share a clock and what their handlers note.
type versions struct {
	t     *testing.T
	d     *inboxtest.Database
	clock *fxtest.Clock

	mu  sync.Mutex
	ran []string // "key/ID"
}

func onVersions(t *testing.T, test func(t *testing.T, v *versions)) {
	t.Helper()
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		test(t, &versions{t: t, d: d, clock: fxtest.NewClock(inboxtest.Noon)})
	})
}

// note declares a handler that notes what it runs.
func (v *versions) note(key string, opts ...handler.Option) *inbox.HandlerSpec {
	return inboxtest.Do(key, func(_ context.Context, m inboxtest.Bytes) error {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.ran = append(v.ran, key+"/"+m.ID)
		return nil
	}, opts...)
}

func (v *versions) program(opts ...inbox.Option) program {
	v.t.Helper()
	ib := inboxtest.New(v.t, v.d.Another(v.t), append([]inbox.Option{inbox.Configure(func(o *inbox.Options) {
		o.Clock = v.clock
		o.Cleanup.Retention = 24 * time.Hour
	})}, opts...)...)
	o, err := ib.Ops(patient)
	require.NoError(v.t, err)
	return program{ib, v.t, o}
}

// handled returns what has run since the last call.
func (v *versions) handled() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	ran := v.ran
	v.ran = nil
	return ran
}

// backfill backfills a handler from Noon on.
func (p program) backfill(key string, bulk ops.Bulk) ops.BulkResult {
	p.t.Helper()
	result, err := p.ops.Backfill(p.t.Context(), ada, key, inboxtest.Noon, time.Time{}, bulk)
	require.NoError(p.t, err)
	return result
}

// pairs returns the statuses of a handler key, by message ID.
func (p program) pairs(keys ...string) []string {
	p.t.Helper()
	all := []string{}
	for _, s := range inboxtest.Statuses(p.t, p.Inbox) {
		if slices.Contains(keys, s.HandlerKey) {
			all = append(all, s.HandlerKey+"/"+s.MessageID)
		}
	}
	return all
}

func message(channel, typ, id string) handler.RawMessage {
	return handler.RawMessage{Channel: channel, Type: typ, ID: id, Content: []byte(id)}
}

// TestBackfillAddsMissingStatuses proves contract 4.2, 11.1: what a program without the handler
// accepted runs, once, and nothing else does.
func TestBackfillAddsMissingStatuses(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		old := v.program(inbox.Channel("c", inbox.On("t", v.note("mail")), inbox.On("other", v.note("alone"))),
			inbox.Channel("d", inbox.On("t", v.note("ship"))))
		inboxtest.Accept(t, old.Inbox, "a", "b", "c", "d")
		for _, m := range []handler.RawMessage{message("c", "other", "type"), message("d", "t", "channel")} {
			_, err := old.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		inboxtest.Process(t, old.Inbox)
		v.handled()
		now := v.program(inbox.Channel("c", inbox.On("t", v.note("mail"), v.note("bill")), inbox.On("other", v.note("alone"))),
			inbox.Channel("d", inbox.On("t", v.note("ship"))))
		v.clock.Advance(time.Second)
		inboxtest.Accept(t, now.Inbox, "e", "b")
		require.Equal(t, []string{"bill/b", "bill/e"}, now.pairs("bill"))

		require.Equal(t, ops.BulkResult{Matched: ops.Count{N: 3}}, now.backfill("bill", ops.Bulk{DryRun: true}))
		require.Equal(t, []string{"bill/b", "bill/e"}, now.pairs("bill"))
		var reported []int64
		result := now.backfill("bill", ops.Bulk{ChunkSize: 2, Progress: func(r ops.BulkResult) {
			reported = append(reported, r.Done)
		}})
		require.Equal(t, ops.BulkResult{Done: 3, Scanned: 6}, result)
		require.Equal(t, []int64{2, 3}, reported)
		added := inboxtest.Status(t, now.Inbox, "a", "bill")
		require.Equal(t, v.clock.Now().UTC(), added.CreatedAt.UTC(), "due now")
		require.Positive(t, added.MessageBytes)
		require.Equal(t, inboxtest.Status(t, now.Inbox, "a", "mail").MessageBytes, added.MessageBytes)
		inboxtest.Process(t, now.Inbox)
		require.Equal(t, []string{"bill/a", "bill/b", "bill/c", "bill/d", "bill/e", "mail/e"}, sorted(v.handled()))
		require.Zero(t, now.backfill("bill", ops.Bulk{}).Done, "nothing lacks")

		// Each chunk has an audit row with what it added; so have the dry run and the ends.
		page, err := now.ops.Audit(t.Context(), ops.AuditFilter{Actor: ada, Action: ops.ActionBackfill}, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 1+2+1+1)
		noted := 0
		for _, entry := range page.Items {
			require.Equal(t, "handler bill", entry.Target)
			var detail struct {
				Filter   ops.Filter `json:"filter"`
				Statuses []string   `json:"status_ids"`
			}
			require.NoError(t, json.Unmarshal([]byte(entry.Detail), &detail))
			require.Equal(t, []string{"bill"}, detail.Filter.HandlerKeys)
			require.Equal(t, inboxtest.Noon, detail.Filter.From)
			noted += len(detail.Statuses)
		}
		require.Equal(t, 3, noted)
	})
}

// TestBackfillAddsNoSecondRowForALegacyKey proves contract 4.2: a row under a legacy key is the
// handler's.
func TestBackfillAddsNoSecondRowForALegacyKey(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		before := v.program(inboxtest.Handlers(v.note("mail"), v.note("post")))
		inboxtest.Accept(t, before.Inbox, "a", "b")
		inboxtest.Process(t, before.Inbox)
		without := v.program(inboxtest.Handlers(v.note("mail")))
		inboxtest.Accept(t, without.Inbox, "c")
		v.handled()
		v.clock.Advance(time.Second)
		now := v.program(inboxtest.Handlers(v.note("mail"), v.note("letter", handler.LegacyKeys("mailing", "post"))))
		require.Equal(t, ops.Count{N: 1}, now.backfill("post", ops.Bulk{DryRun: true}).Matched)
		require.EqualValues(t, 1, now.backfill("post", ops.Bulk{}).Done)
		require.Equal(t, []string{"post/a", "post/b", "letter/c"}, now.pairs("letter", "post"))
		inboxtest.Process(t, now.Inbox)
		require.Equal(t, []string{"letter/c", "mail/c"}, sorted(v.handled()))
	})
}

// TestBackfillAddsNoSecondRowForANewerKey proves the same for a program from before the rename. The new program has
// neither started nor accepted.
func TestBackfillAddsNoSecondRowForANewerKey(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		without := v.program(inboxtest.Handlers(v.note("mail")))
		inboxtest.Accept(t, without.Inbox, "a", "b")
		v.clock.Advance(time.Second)
		now := v.program(inboxtest.Handlers(v.note("mail"), v.note("letter", handler.LegacyKeys("mailing", "post"))))
		require.EqualValues(t, 2, now.backfill("letter", ops.Bulk{}).Done)
		before := v.program(inboxtest.Handlers(v.note("mail"), v.note("post")))
		require.Zero(t, before.backfill("post", ops.Bulk{DryRun: true}).Matched)
		require.Zero(t, before.backfill("post", ops.Bulk{}).Done)
		require.Zero(t, inboxtest.Accept(t, before.Inbox, "a")[0].Handlers)
		require.Equal(t, []string{"letter/a", "letter/b"}, now.pairs("letter", "post"))
	})
}

// TestLegacyRowAddedDuringABackfillStaysTheOnlyOne proves the same while an accept of a
// program from before the rename is under way.
func TestLegacyRowAddedDuringABackfillStaysTheOnlyOne(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) { legacyKeysRowStaysTheOnly(t, v, false) })
}

// TestNewerRowAddedDuringABackfillStaysTheOnlyOne proves the same with the programs exchanged.
func TestNewerRowAddedDuringABackfillStaysTheOnlyOne(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) { legacyKeysRowStaysTheOnly(t, v, true) })
}

// TestBackfillStatesItsIsolation proves contract 3.7, 11.1: the snapshot of a stricter default would
// not show what an accept has added meanwhile.
func TestBackfillStatesItsIsolation(t *testing.T) {
	inboxtest.OnStrictPostgres(t, func(t *testing.T, d *inboxtest.Database, _ string) {
		legacyKeysRowStaysTheOnly(t, &versions{t: t, d: d, clock: fxtest.NewClock(inboxtest.Noon)}, false)
	})
}

// legacyKeysRowStaysTheOnly backfills by the program from after the rename or, if exchanged, from before it, while the
// other one accepts.
func legacyKeysRowStaysTheOnly(t *testing.T, v *versions, exchanged bool) {
	without := v.program(inboxtest.Handlers(v.note("mail")))
	inboxtest.Accept(t, without.Inbox, "a", "b")
	before := v.program(inboxtest.Handlers(v.note("mail"), v.note("post")))
	now := v.program(inboxtest.Handlers(v.note("mail"), v.note("letter", handler.LegacyKeys("post"))))
	accepting, accepted, backfilling, backfilled := before, "post", now, "letter"
	if exchanged {
		accepting, accepted, backfilling, backfilled = now, "letter", before, "post"
	}
	tx := accepting.DB().Begin()
	_, err := accepting.AcceptTx(t.Context(), tx, inboxtest.Message("a"))
	require.NoError(t, err)
	added := make(chan ops.BulkResult, 1)
	failed := make(chan error, 1)
	go func() {
		result, err := backfilling.ops.Backfill(t.Context(), ada, backfilled, inboxtest.Noon,
			v.clock.Now().Add(time.Second), ops.Bulk{})
		added <- result
		failed <- err
	}()
	if v.d.Dialect == "postgres" {
		awaitLock(t, v.d)
	}
	require.NoError(t, tx.Commit().Error)
	require.NoError(t, <-failed)
	require.EqualValues(t, 1, (<-added).Done)
	require.Equal(t, []string{accepted + "/a", backfilled + "/b"}, now.pairs("letter", "post"))
}

// awaitLock waits until a session waits for a lock.
func awaitLock(t *testing.T, d *inboxtest.Database) {
	t.Helper()
	require.Eventually(t, func() bool {
		var n int64
		require.NoError(t, d.DB.Raw(
			`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n).Error)
		return n > 0
	}, inboxtest.Patience, time.Millisecond)
}

// TestConcurrentBackfillAndAcceptLeaveOneRow proves contract 4.2: the unique constraint keeps them to
// one row, whoever comes first.
func TestConcurrentBackfillAndAcceptLeaveOneRow(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		old := v.program(inboxtest.Handlers(v.note("mail")))
		var ids, expected []string
		for i := range 40 {
			ids = append(ids, fmt.Sprintf("m%02d", i))
			expected = append(expected, "bill/"+ids[i])
		}
		inboxtest.Accept(t, old.Inbox, ids...)
		now := v.program(inboxtest.Handlers(v.note("mail"), v.note("bill")))
		for _, err := range racetest.Together(4, func(i int) error {
			if i%2 == 0 {
				_, err := now.ops.Backfill(t.Context(), ada, "bill", inboxtest.Noon, v.clock.Now().Add(time.Second),
					ops.Bulk{ChunkSize: 5})
				return err
			}
			for from := range slices.Chunk(ids, 7) {
				var messages []handler.RawMessage
				for _, id := range from {
					messages = append(messages, inboxtest.Message(id))
				}
				slices.Reverse(messages)
				if _, err := now.Accept(t.Context(), messages...); err != nil {
					return err
				}
			}
			return nil
		}) {
			require.NoError(t, err)
		}
		require.Equal(t, expected, now.pairs("bill"))
		inboxtest.Process(t, now.Inbox)
		require.Len(t, v.handled(), 80, "each handler has run each message once")
	})
}

// TestBackfillKeepsToItsPeriodAndTheRetention proves contract 4.2, 11.1: a row that a handler had
// may have been cleaned up after its retention, and is not added again.
func TestBackfillKeepsToItsPeriodAndTheRetention(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		old := v.program(inboxtest.Handlers(v.note("mail")))
		for _, id := range []string{"0s", "1s", "2s", "3s"} {
			inboxtest.Accept(t, old.Inbox, id)
			v.clock.Advance(time.Second)
		}
		now := v.program(inboxtest.Handlers(v.note("mail"), v.note("bill"), v.note("brief", handler.Retention(time.Minute)),
			v.note("full")))
		within := func(key string, from, to time.Duration) ops.BulkResult {
			result, err := now.ops.Backfill(t.Context(), ada, key, inboxtest.Noon.Add(from), inboxtest.Noon.Add(to), ops.Bulk{})
			require.NoError(t, err)
			return result
		}
		require.Zero(t, within("bill", -time.Hour, 0).Done)
		require.EqualValues(t, 2, within("bill", time.Second, 3*time.Second).Done)
		require.Equal(t, []string{"bill/1s", "bill/2s"}, now.pairs("bill"))
		require.EqualValues(t, 1, within("bill", 2*time.Second+1, 4*time.Second).Done)
		require.Equal(t, []string{"bill/1s", "bill/2s", "bill/3s"}, now.pairs("bill"))

		v.clock.Advance(57 * time.Second) // 61 s after Noon
		require.EqualValues(t, 3, within("brief", 0, time.Hour).Done)
		require.Equal(t, []string{"brief/1s", "brief/2s", "brief/3s"}, now.pairs("brief"))
		v.clock.Advance(24*time.Hour - 58*time.Second) // "0s", "1s" and "2s" are older than the inbox's retention
		require.EqualValues(t, 1, within("full", 0, 48*time.Hour).Done)
		require.Equal(t, []string{"full/3s"}, now.pairs("full"))
	})
}

// TestBackfillUsesTheHandlersChannelAmongSharedIDs proves contract 11.1, 4.4.
func TestBackfillUsesTheHandlersChannelAmongSharedIDs(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		shared := func(channel string, handlers ...*inbox.HandlerSpec) inbox.Option {
			return inbox.Channel(channel, inbox.IDNamespace("both"), inbox.On("t", handlers...))
		}
		old := v.program(shared("c", v.note("mail")), shared(`d "ö"`, v.note("ship")))
		for _, m := range []handler.RawMessage{message("c", "t", "1"), message(`d "ö"`, "t", "2"), message("c", "t", "3"),
			message(`d "ö"`, "t", "3")} {
			_, err := old.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		now := v.program(shared("c", v.note("mail"), v.note("bill")), shared(`d "ö"`, v.note("ship"), v.note("pack")))
		v.clock.Advance(time.Second)
		require.EqualValues(t, 2, now.backfill("bill", ops.Bulk{}).Done)
		require.EqualValues(t, 1, now.backfill("pack", ops.Bulk{}).Done)
		require.Equal(t, []string{"bill/1", "pack/2", "bill/3"}, now.pairs("bill", "pack"))
	})
}

// TestRenamedChannelIsBackfilledByItsNamespace proves that a channel's messages from before its
// rename count as its own.
func TestRenamedChannelIsBackfilledByItsNamespace(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		old := v.program(inboxtest.Handlers(v.note("mail")))
		inboxtest.Accept(t, old.Inbox, "1")
		now := v.program(inbox.Channel("renamed", inbox.IDNamespace("c"), inbox.On("t", v.note("mail"), v.note("bill"))))
		v.clock.Advance(time.Second)
		require.EqualValues(t, 1, now.backfill("bill", ops.Bulk{}).Done)
	})
}

// TestSharedRenamedChannelIsBackfilledSinceItsRename proves contract 11.1: whose the earlier messages are is
// not known.
func TestSharedRenamedChannelIsBackfilledSinceItsRename(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		old := v.program(inboxtest.Handlers(v.note("mail")))
		inboxtest.Accept(t, old.Inbox, "1")
		shared := func(billing ...*inbox.HandlerSpec) []inbox.Option {
			return []inbox.Option{inbox.Channel("renamed", inbox.IDNamespace("c"), inbox.On("t", billing...)),
				inbox.Channel("other", inbox.IDNamespace("c"), inbox.On("t", v.note("ship")))}
		}
		renamed := v.program(shared(v.note("mail"))...)
		_, err := renamed.Accept(t.Context(), message("renamed", "t", "2"))
		require.NoError(t, err)
		now := v.program(shared(v.note("mail"), v.note("bill"))...)
		v.clock.Advance(time.Second)
		require.EqualValues(t, 1, now.backfill("bill", ops.Bulk{}).Done)
		require.Equal(t, []string{"bill/2"}, now.pairs("bill"))
	})
}

// TestBackfillStopsAndContinues proves contract 11.1: between chunks, at the confirmed number, and
// a repeat continues.
func TestBackfillStopsAndContinues(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		old := v.program(inboxtest.Handlers(v.note("mail")))
		inboxtest.Accept(t, old.Inbox, "1", "2", "3", "4", "5", "6", "7", "8", "9")
		now := v.program(inboxtest.Handlers(v.note("mail"), v.note("bill")))
		v.clock.Advance(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		result, err := now.ops.Backfill(ctx, ada, "bill", inboxtest.Noon, time.Time{},
			ops.Bulk{ChunkSize: 2, Progress: func(ops.BulkResult) { cancel() }})
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 2, result.Done)
		require.Len(t, now.pairs("bill"), 2)
		result = now.backfill("bill", ops.Bulk{ChunkSize: 2, Max: 3})
		require.EqualValues(t, 3, result.Done)
		require.True(t, result.More)
		require.Len(t, now.pairs("bill"), 5)
		result = now.backfill("bill", ops.Bulk{Max: 4})
		require.EqualValues(t, 4, result.Done)
		require.False(t, result.More)
		require.Len(t, now.pairs("bill"), 9)
		inboxtest.Process(t, now.Inbox)
		require.Len(t, v.handled(), 18)
	})
}

// TestBackfilledLanesRunInAcceptanceOrder proves contract 5.12: however the messages' IDs sort, and
// whatever else was accepted since.
func TestBackfilledLanesRunInAcceptanceOrder(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		old := v.program(inboxtest.Handlers(v.note("mail")))
		in := func(lane string, ids ...string) (messages []handler.RawMessage) {
			for _, id := range ids {
				m := inboxtest.Message(id)
				m.OrderingKey = []byte(lane)
				messages = append(messages, m)
			}
			return messages
		}
		_, err := old.Accept(t.Context(), in("x", "9", "1", "8", "2")...)
		require.NoError(t, err)
		v.clock.Advance(-time.Second) // of another machine
		_, err = old.Accept(t.Context(), in("x", "7")...)
		require.NoError(t, err)
		v.clock.Advance(2 * time.Second)
		byContent := handler.OrderedBy(func(m handler.RawMessage) []byte { return append(m.OrderingKey, m.Content[0]%2+'0') })
		now := v.program(inboxtest.Handlers(v.note("mail"), v.note("bill", handler.Ordered()), v.note("tax", byContent)))
		_, err = now.Accept(t.Context(), in("x", "5", "3")...)
		require.NoError(t, err)

		from := inboxtest.Noon.Add(-time.Minute)
		_, err = now.ops.Backfill(t.Context(), ada, "bill", from, time.Time{}, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrNotPaused)
		require.Equal(t, []string{"bill/3", "bill/5"}, now.pairs("bill"))
		// As a claim does that finds it behind others in its lane.
		inboxtest.Exec(t, v.d.DB, `UPDATE inbox_handler_statuses SET is_waiting = true WHERE message_id = '3' AND handler_key <> 'mail'`)
		require.NoError(t, now.ops.Pause(t.Context(), ada, "tax"))
		require.NoError(t, now.ops.Pause(t.Context(), ada, "bill"))
		for _, key := range []string{"bill", "tax"} {
			result, err := now.ops.Backfill(t.Context(), ada, key, from, time.Time{}, ops.Bulk{ChunkSize: 2})
			require.NoError(t, err)
			require.EqualValues(t, 5, result.Done)
			inboxtest.Process(t, now.Inbox)
			require.NotContains(t, v.handled(), key+"/7", "paused")
			require.NoError(t, now.ops.Resume(t.Context(), ada, key))
			for range 20 { // each drain attempts a lane's head
				inboxtest.Process(t, now.Inbox)
			}
			ran := slices.DeleteFunc(v.handled(), func(at string) bool { return at[:len(at)-2] != key })
			expected := map[string][]string{"bill": {"9", "1", "8", "2", "7", "5", "3"}, "tax": {"8", "2", "9", "1", "7", "5", "3"}}[key]
			require.Len(t, ran, len(expected))
			if key == "tax" { // two lanes, of odd and of even IDs
				slices.SortStableFunc(ran, func(a, b string) int { return int(a[len(a)-1]%2) - int(b[len(b)-1]%2) })
			}
			for i, id := range expected {
				require.Equal(t, key+"/"+id, ran[i], ran)
			}
		}
	})
}

// TestCleanupDuringABackfillDeletesNothingItAdded proves contract 4.2: a backfill locks its messages
// against cleanup, as an accept does, and adds nothing to a message that is gone.
func TestCleanupDuringABackfillDeletesNothingItAdded(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		short := inbox.Configure(func(o *inbox.Options) { o.Cleanup.Retention = time.Hour })
		old := v.program(short, inboxtest.Handlers(v.note("mail")))
		var ids []string
		for i := range 60 {
			ids = append(ids, fmt.Sprintf("m%02d", i))
		}
		inboxtest.Accept(t, old.Inbox, ids...)
		inboxtest.Process(t, old.Inbox)
		v.handled()
		v.clock.Advance(2 * time.Hour)
		now := v.program(short, inboxtest.Handlers(v.note("mail"), v.note("bill", handler.Retention(24*time.Hour))))
		cleaner := v.program(short, inboxtest.Handlers(v.note("mail"), v.note("bill", handler.Retention(24*time.Hour))))
		added := int64(0)
		for _, err := range racetest.Together(2, func(i int) error {
			if i == 0 {
				_, err := cleaner.Cleanup(t.Context())
				return err
			}
			result, err := now.ops.Backfill(t.Context(), ada, "bill", inboxtest.Noon, time.Time{}, ops.Bulk{ChunkSize: 3})
			added = result.Done
			return err
		}) {
			require.NoError(t, err)
		}
		require.Len(t, now.pairs("bill"), int(added))
		inboxtest.Process(t, now.Inbox)
		require.Len(t, v.handled(), int(added))
		var orphans int64
		require.NoError(t, now.DB().Model(&models.HandlerStatus{}).
			Where("message_number NOT IN (SELECT number FROM inbox_messages)").Count(&orphans).Error)
		require.Zero(t, orphans)
	})
}

// TestBackfillWakesTheProcessor proves contract 4.7, 11.1.
func TestBackfillWakesTheProcessor(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		old := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("mail", inboxtest.Nothing)))
		inboxtest.Accept(t, old, "1")
		ran := make(chan string, 1)
		rarely := inbox.Configure(func(o *inbox.Options) { o.Processor.PollingInterval = time.Hour })
		now := inboxtest.New(t, d.Another(t), rarely,
			inboxtest.Handlers(inboxtest.Do("mail", inboxtest.Nothing), inboxtest.Do("bill",
				func(_ context.Context, m inboxtest.Bytes) error {
					ran <- m.ID
					return nil
				})))
		inboxtest.Start(t, now)
		require.Eventually(t, func() bool { return inboxtest.AllCompleted(t, now) }, inboxtest.Patience, 10*time.Millisecond)
		o, err := now.Ops()
		require.NoError(t, err)
		result, err := o.Backfill(t.Context(), ada, "bill", time.Now().Add(-time.Hour), time.Time{}, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 1, result.Done)
		select {
		case id := <-ran:
			require.Equal(t, "1", id)
		case <-time.After(inboxtest.Patience):
			require.Fail(t, "it was not woken")
		}
	})
}

func TestBackfillIsRefused(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		p := v.program(inboxtest.Handlers(v.note("mail")),
			inbox.Channel("direct", inbox.Direct(), inbox.Kafka(kafkaconsumer.Config{Brokers: []string{"127.0.0.1:1"},
				Topics: []string{"t"}, GroupID: "g"}), inbox.On("t", v.note("at once"))))
		inboxtest.Accept(t, p.Inbox, "1")
		outside, err := ops.New(v.d.DB)
		require.NoError(t, err)
		noon := inboxtest.Noon
		for name, each := range map[string]struct {
			o        *ops.Ops
			actor    ops.Actor
			key      string
			from, to time.Time
			bulk     ops.Bulk
			expected error
		}{
			"outside of the application": {outside, ada, "mail", noon, time.Time{}, ops.Bulk{}, ops.ErrNeedsApplication},
			"without an actor":           {p.ops, "", "mail", noon, time.Time{}, ops.Bulk{}, ops.ErrBadInput},
			"an unknown handler":         {p.ops, ada, "none", noon, time.Time{}, ops.Bulk{}, ops.ErrNotFound},
			"a channel without statuses": {p.ops, ada, "at once", noon, time.Time{}, ops.Bulk{}, ops.ErrBadInput},
			"without a time":             {p.ops, ada, "mail", time.Time{}, noon, ops.Bulk{}, ops.ErrBadInput},
			"an empty period":            {p.ops, ada, "mail", noon, noon, ops.Bulk{}, ops.ErrBadInput},
			"too large a chunk":          {p.ops, ada, "mail", noon.Add(-1), noon, ops.Bulk{ChunkSize: 1001}, ops.ErrBadInput},
			"a negative number":          {p.ops, ada, "mail", noon.Add(-1), noon, ops.Bulk{Max: -1}, ops.ErrBadInput},
		} {
			result, err := each.o.Backfill(t.Context(), each.actor, each.key, each.from, each.to, each.bulk)
			require.ErrorIs(t, err, each.expected, name)
			require.Zero(t, result, name)
		}
		require.Len(t, p.pairs("mail"), 1)
		require.ErrorIs(t, outside.Can(ops.ActionBackfill), ops.ErrNeedsApplication)
		require.NoError(t, p.ops.Can(ops.ActionBackfill))
		page, err := p.ops.Audit(t.Context(), ops.AuditFilter{}, "", 0)
		require.NoError(t, err)
		require.Empty(t, page.Items)
	})
}

// TestPanickingOrderingKeyFailsItsChunk proves that a user's function cannot end the process, and
// that nothing of its chunk is added.
func TestPanickingOrderingKeyFailsItsChunk(t *testing.T) {
	onVersions(t, func(t *testing.T, v *versions) {
		old := v.program(inboxtest.Handlers(v.note("mail")))
		inboxtest.Accept(t, old.Inbox, "1", "2")
		now := v.program(inboxtest.Handlers(v.note("mail"), v.note("bill", handler.OrderedBy(func(m handler.RawMessage) []byte {
			if m.ID == "2" {
				panic(errors.New("no key"))
			}
			return nil
		}))))
		require.NoError(t, now.Pause(t.Context(), "bill"))
		_, err := now.ops.Backfill(t.Context(), ada, "bill", inboxtest.Noon, v.clock.Now().Add(1000), ops.Bulk{})
		require.ErrorContains(t, err, `message "2"`)
		require.ErrorContains(t, err, "no key")
		require.Empty(t, now.pairs("bill"))
	})
}
