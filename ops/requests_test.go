package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// TestCancelledCallHasFailed proves contract 5.5, 11.1: an operator with the tables alone cancels the call.
func TestCancelledCallHasFailed(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		began := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(
			inboxtest.Do("plain", func(ctx context.Context, m inboxtest.Bytes) error {
				began <- m.HandlerKey
				<-ctx.Done()
				return ctx.Err()
			}, handler.MaxRetries(1)),
			inboxtest.Do("content", func(ctx context.Context, m inboxtest.Bytes) error {
				began <- m.HandlerKey
				<-ctx.Done()
				return nil
			})))
		o, err := ops.New(d.DB, patient)
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, began, "one call")
		inboxtest.Receive(t, began, "the other call")
		stale := handled("plain", "1")
		stale.Version = int64(inboxtest.Status(t, ib, "1", "plain").Version) + 1
		_, err = o.CancelCall(t.Context(), ada, stale)
		require.ErrorIs(t, err, ops.ErrStale)
		for _, key := range []string{"plain", "content"} {
			id, err := o.CancelCall(t.Context(), ada, handled(key, "1"))
			require.NoError(t, err)
			ended, err := o.AwaitRequest(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, []any{ops.ActionCancel, key, ada, `{"cancelled":true}`},
				[]any{ended.Kind, ended.Target, ended.Actor, ended.Result})
			require.Contains(t, ended.TakenBy, "process ")
		}
		inboxtest.Eventually(t, func() bool {
			return inboxtest.Status(t, ib, "1", "plain").IsPoisoned && inboxtest.Status(t, ib, "1", "content").CompletedAt != nil
		}, "both to end")
		s := inboxtest.Status(t, ib, "1", "plain")
		require.Equal(t, "cancelled by operator ada: context canceled", *s.LastError)
		require.Equal(t, 1, s.ErrorCount, "it is charged")
		require.Equal(t, models.OutcomeProcessed, inboxtest.Status(t, ib, "1", "content").Outcome, "nil is a success")
		_, err = o.CancelCall(t.Context(), ada, handled("plain", "1"))
		require.ErrorIs(t, err, ops.ErrNotClaimed)
		audit, err := o.Audit(t.Context(), ops.AuditFilter{Action: "cancel"}, "", 10)
		require.NoError(t, err)
		require.Len(t, audit.Items, 2)
		require.Equal(t, "handler plain of message 1", audit.Items[1].Target)
		require.Regexp(t, "^requested, attempt 1, request ID [0-9a-f-]{36}$", audit.Items[1].Summary())
	})
}

// TestCancelledTransactionalCallIsRolledBack proves contract 5.11, 11.1.
func TestCancelledTransactionalCallIsRolledBack(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		inboxtest.Exec(t, d.DB, `CREATE TABLE letters (id text)`)
		began := make(chan struct{}, 1)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Tx("tx",
			func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
				if err := tx.Exec(`INSERT INTO letters VALUES ('1')`).Error; err != nil {
					return err
				}
				began <- struct{}{}
				return tx.Exec(`SELECT pg_sleep(60)`).Error
			}, handler.MaxRetries(1))))
		o, err := ops.New(d.DB, patient)
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, began, "the call")
		_, err = o.CancelCall(t.Context(), ada, handled("tx", "1"))
		require.NoError(t, err)
		inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, "1", "tx").IsPoisoned }, "the failure")
		require.True(t, strings.HasPrefix(*inboxtest.Status(t, ib, "1", "tx").LastError, "cancelled by operator ada: "))
		var n int64
		require.NoError(t, d.DB.Table("letters").Count(&n).Error)
		require.Zero(t, n)
	})
}

func TestOnlyACallThatAWorkerMakesIsCancelled(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("done")
		r.process()
		r.accept("pending", "manual")
		inboxtest.Exec(t, r.d.DB,
			`UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE message_id = 'manual'`)
		for id, want := range map[string]error{"done": ops.ErrNotClaimed, "pending": ops.ErrNotClaimed,
			"manual": ops.ErrNotClaimed, "inline": ops.ErrNotFound, "": ops.ErrBadInput} {
			_, err := r.ops.CancelCall(t.Context(), ada, handled("mail", id))
			require.ErrorIs(t, err, want, id)
		}
		require.Empty(t, r.audit())
		require.NoError(t, inboxtest.Store(t, r.d.DB).Heartbeat(t.Context(), store.Worker{ID: uuid.NewString(), Host: "h",
			HandlerKeys: []string{"mail"}, Health: `[{"code":"` + health.LongRunning +
				`","state":"degraded","handler_key":"mail","message_ids":["inline"],"detail":"it does not return"}]`}, r.clock.Now()))
		id, err := r.ops.CancelCall(t.Context(), ada, handled("mail", "inline"))
		require.NoError(t, err, "a worker reports it")
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = r.ops.AwaitRequest(soon, id)
		require.ErrorIs(t, err, ops.ErrNotYet)
		require.ErrorContains(t, err, "no living worker that can do it has taken it")
		require.NoError(t, r.ops.ServeRequests(t.Context(), "me", []string{"c"}, ops.ActionCancel))
		asked, err := r.ops.Request(t.Context(), id)
		require.NoError(t, err)
		require.Empty(t, asked.TakenBy, "this process makes no such call")
		_, err = r.ops.Request(t.Context(), uuid.NewString())
		require.ErrorIs(t, err, ops.ErrNotFound)
	})
}

// TestRequestsAreCarriedOutInTheOperatorsName proves contract 11.1: by a process that can, once, and with the result.
func TestRequestsAreCarriedOutInTheOperatorsName(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, allowReplay)
		o, err := ops.New(d.DB, patient, func(o *ops.Options) { o.Clock = r.clock })
		require.NoError(t, err)
		r.accept("1", "2")
		r.process()
		inboxtest.Exec(t, d.DB, `DELETE FROM inbox_handler_statuses WHERE handler_key = 'ship'`)
		since := r.clock.Now().Add(-time.Hour)
		r.clock.Advance(time.Second)
		all := []ops.Action{ops.ActionBackfill, ops.ActionCleanup, ops.ActionReplay}
		serve := func(id string) ops.Request {
			for range 2 { // the second time nothing is left
				require.NoError(t, r.ops.ServeRequests(t.Context(), "me", []string{"c"}, all...))
			}
			ended, err := o.AwaitRequest(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, "me", ended.TakenBy)
			return ended
		}

		id, err := o.RequestBackfill(t.Context(), "bob", "ship", since, time.Time{}, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		var result ops.BulkResult
		require.NoError(t, json.Unmarshal([]byte(serve(id).Result), &result))
		require.Equal(t, ops.Count{N: 2}, result.Matched)
		id, err = o.RequestBackfill(t.Context(), "bob", "ship", since, time.Time{}, ops.Bulk{})
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal([]byte(serve(id).Result), &result))
		require.EqualValues(t, 2, result.Done)

		content := []byte(`{"b":2}`)
		id, copied, err := o.RequestReplay(t.Context(), "bob", ops.MessageRef{ID: "1"}, ops.Edit{Content: &content})
		require.NoError(t, err)
		serve(id)
		m, err := o.Message(t.Context(), ada, ops.MessageRef{ID: copied})
		require.NoError(t, err)
		require.Equal(t, content, m.Content)

		r.process()
		r.clock.Advance(2 * time.Hour)
		id, err = o.RequestCleanup(t.Context(), "bob")
		require.NoError(t, err)
		var deleted handler.Deleted
		require.NoError(t, json.Unmarshal([]byte(serve(id).Result), &deleted))
		require.EqualValues(t, 3, deleted.Messages)
		require.Contains(t, r.audit(), "bob cleanup inbox")
		require.NotContains(t, strings.Join(r.audit(), "\n"), "me ")

		audit, err := o.Audit(t.Context(), ops.AuditFilter{Actor: "bob"}, "", 100)
		require.NoError(t, err)
		var requested []string
		for _, e := range slices.Backward(audit.Items) {
			if words, _, found := strings.Cut(e.Summary(), "request ID"); found {
				requested = append(requested, string(e.Action)+" "+words)
			}
		}
		from := ", from " + since.UTC().Format(time.RFC3339)
		require.Equal(t, []string{"backfill requested, dry run" + from + ", ", "backfill requested" + from + ", ",
			"replay requested, copy ID " + copied + ", namespace c, ", "cleanup requested, "}, requested)
	})
}

func TestRequestsThatFailSaySo(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) { // replays are off
		r.accept("1")
		id, _, err := r.ops.RequestReplay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{})
		require.NoError(t, err)
		require.NoError(t, r.ops.ServeRequests(t.Context(), "me", []string{"other"}, ops.ActionReplay), "of another channel")
		require.NoError(t, r.ops.ServeRequests(t.Context(), "me", []string{"c"}, ops.ActionCleanup), "of another kind")
		asked, err := r.ops.Request(t.Context(), id)
		require.NoError(t, err)
		require.Empty(t, asked.TakenBy)
		require.NoError(t, r.ops.ServeRequests(t.Context(), "me", []string{"c"}, ops.ActionReplay))
		_, err = r.ops.AwaitRequest(t.Context(), id)
		require.ErrorIs(t, err, ops.ErrRequestFailed)
		require.ErrorContains(t, err, "replay is off")

		for _, bad := range []func() error{
			func() error {
				_, err := r.ops.RequestBackfill(t.Context(), ada, "", r.clock.Now(), time.Time{}, ops.Bulk{})
				return err
			},
			func() error {
				_, err := r.ops.RequestBackfill(t.Context(), ada, "mail", time.Time{}, time.Time{}, ops.Bulk{})
				return err
			},
			func() error {
				_, err := r.ops.RequestBackfill(t.Context(), ada, "mail", r.clock.Now(), time.Time{}, ops.Bulk{Max: -1})
				return err
			},
			func() error {
				_, err := r.ops.RequestReadAgain(t.Context(), ada, envelope.ReadAgain{Channel: "c", From: r.clock.Now()})
				return err
			},
			func() error { _, err := r.ops.RequestCleanup(t.Context(), ""); return err },
			func() error { _, err := r.ops.Request(t.Context(), "x"); return err },
		} {
			require.ErrorIs(t, bad(), ops.ErrBadInput)
		}
		id, err = r.ops.RequestBackfill(t.Context(), ada, "unknown", r.clock.Now(), time.Time{}, ops.Bulk{})
		require.NoError(t, err)
		r.clock.Advance(2 * time.Hour)
		require.NoError(t, r.ops.ServeRequests(t.Context(), "me", []string{"c"}, ops.ActionBackfill))
		asked, err = r.ops.Request(t.Context(), id)
		require.NoError(t, err)
		require.Empty(t, asked.TakenBy, "no such handler, and it has expired")
	})
}

// TestStartedInboxServesRequests proves contract 11.1.
func TestStartedInboxServesRequests(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.Retention = time.Hour
		}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		o, err := ops.New(d.DB, patient)
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		id, err := o.RequestCleanup(t.Context(), ada)
		require.NoError(t, err)
		_, err = o.AwaitRequest(t.Context(), id)
		require.False(t, errors.Is(err, ops.ErrNotYet), "%v", err)
	})
}

// storeRequest stores a request as an operator does, made so long ago.
func storeRequest(t *testing.T, d *inboxtest.Database, kind ops.Action, target, argument string, ago time.Duration,
) string {
	t.Helper()
	id := uuid.Must(uuid.NewV7()).String()
	require.NoError(t, d.DB.Create(&models.Request{ID: id, Kind: string(kind), Target: target, Argument: argument,
		Actor: "ada", RequestedAt: time.Now().Add(-ago)}).Error)
	return id
}

// TestACallThatWasNotMeantIsNotCancelled proves contract 11.1: an attempt that is not charged runs again under the same
// number, long before a request expires.
func TestACallThatWasNotMeantIsNotCancelled(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		began, hang := make(chan struct{}, 10), make(chan struct{})
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("h",
			func(ctx context.Context, _ inboxtest.Bytes) error {
				began <- struct{}{}
				select {
				case <-hang:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})))
		o, err := ib.Ops(patient)
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "1")
		inboxtest.Receive(t, began, "the call")
		ofEarlierClaim := storeRequest(t, d, ops.ActionCancel, "h", `{"message_id":"1","attempt":1,"version":99}`,
			time.Minute)
		beforeTheCall := storeRequest(t, d, ops.ActionCancel, "h", `{"message_id":"1"}`, 10*time.Minute)
		_, err = o.AwaitRequest(t.Context(), ofEarlierClaim)
		require.ErrorIs(t, err, ops.ErrRequestFailed)
		require.ErrorContains(t, err, "not 99")
		require.NoError(t, o.ServeRequests(t.Context(), "me", nil, ops.ActionCancel))
		asked, err := o.Request(t.Context(), beforeTheCall)
		require.NoError(t, err)
		require.Empty(t, asked.TakenBy)
		close(hang)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it to complete")
		require.Zero(t, inboxtest.Status(t, ib, "1", "h").ErrorCount)
	})
}

func TestOneOfSeveralProcessesCarriesARequestOut(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ids := make([]string, 3)
		for i := range ids {
			id, err := r.ops.RequestCleanup(t.Context(), ada)
			require.NoError(t, err)
			ids[i] = id
		}
		for _, err := range racetest.Together(4, func(int) error {
			return r.ops.ServeRequests(t.Context(), "one of us", nil, ops.ActionCleanup)
		}) {
			require.NoError(t, err)
		}
		for _, id := range ids {
			asked, err := r.ops.Request(t.Context(), id)
			require.NoError(t, err)
			require.False(t, asked.EndedAt.IsZero())
		}
		ended := 0
		audit, err := r.ops.Audit(t.Context(), ops.AuditFilter{Action: ops.ActionCleanup}, "", 100)
		require.NoError(t, err)
		for _, e := range audit.Items {
			if strings.Contains(e.Detail, `"ended"`) {
				ended++
			}
		}
		require.Equal(t, len(ids), ended)
	})
}

// TestStopEndsWhatIsCarriedOutAndSaysSo proves contract 11.1, 10.5.
func TestStopEndsWhatIsCarriedOutAndSaysSo(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		began := make(chan struct{}, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.Retention = time.Nanosecond
			o.Archive = func(ctx context.Context, _ []cleanup.Archived) error {
				began <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
		}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		o, err := ops.New(d.DB, patient)
		require.NoError(t, err)
		end := inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "1")
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it to complete")
		id, err := o.RequestCleanup(t.Context(), ada)
		require.NoError(t, err)
		inboxtest.Receive(t, began, "the cleanup")
		end()
		asked, err := o.AwaitRequest(t.Context(), id)
		require.ErrorIs(t, err, ops.ErrRequestFailed)
		require.Contains(t, asked.Problem, "stopped meanwhile")
		require.NotEmpty(t, asked.Result, "the counts so far")
	})
}

// TestCancelledRequestEndsAndKeepsItsResult proves contract 11.1.
func TestCancelledRequestEndsAndKeepsItsResult(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		began := make(chan struct{}, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.Retention = time.Nanosecond
			o.Archive = func(ctx context.Context, _ []cleanup.Archived) error {
				began <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
		}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		o, err := ops.New(d.DB, patient)
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "1")
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it to complete")
		id, err := o.RequestCleanup(t.Context(), ada)
		require.NoError(t, err)
		inboxtest.Receive(t, began, "the cleanup")
		require.NoError(t, o.CancelRequest(t.Context(), ada, id))
		ended, err := o.AwaitRequest(t.Context(), id)
		require.ErrorIs(t, err, ops.ErrRequestFailed)
		require.True(t, strings.HasPrefix(ended.Problem, "cancelled by operator ada: "), ended.Problem)
		require.NotEmpty(t, ended.Result, "the counts so far")
		require.ErrorIs(t, o.CancelRequest(t.Context(), ada, id), ops.ErrStale)
		late, err := o.AwaitRequest(t.Context(), storeRequest(t, d, ops.ActionCancelRequest, id, `{}`, 0))
		require.ErrorIs(t, err, ops.ErrRequestFailed, "it ends, although there is nothing to cancel any more")
		require.Contains(t, late.Problem, "it has ended")

		// No process has taken it, and none does afterwards.
		waiting, err := o.RequestBackfill(t.Context(), ada, "of another program", time.Now(), time.Time{}, ops.Bulk{})
		require.NoError(t, err)
		require.NoError(t, o.CancelRequest(t.Context(), ada, waiting))
		ended, err = o.AwaitRequest(t.Context(), waiting)
		require.ErrorIs(t, err, ops.ErrRequestFailed)
		require.Equal(t, []string{"cancelled by operator ada", "no process"}, []string{ended.Problem, ended.TakenBy})
		require.ErrorIs(t, o.CancelRequest(t.Context(), ada, waiting), ops.ErrStale)
		expired := storeRequest(t, d, ops.ActionBackfill, "of another program", `{}`, 2*time.Hour)
		require.ErrorIs(t, o.CancelRequest(t.Context(), ada, expired), ops.ErrStale)
		require.ErrorIs(t, o.CancelRequest(t.Context(), ada, uuid.Nil.String()), ops.ErrNotFound)
		audit, err := o.Audit(t.Context(), ops.AuditFilter{Action: ops.ActionCancelRequest}, "", 10)
		require.NoError(t, err)
		require.Len(t, audit.Items, 2)
		require.Equal(t, "request "+waiting, audit.Items[0].Target)
	})
}

// TestPayloadOfAReplayDoesNotOutliveItsRequest: the message may be deleted, and a poll must not read it each time.
func TestPayloadOfAReplayDoesNotOutliveItsRequest(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, allowReplay)
		r.accept("1")
		content := []byte(strings.Repeat("secret", 1000))
		id, copied, err := r.ops.RequestReplay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{Content: &content})
		require.NoError(t, err)
		require.NoError(t, r.ops.ServeRequests(t.Context(), "me", []string{"c"}, ops.ActionReplay))
		_, err = r.ops.AwaitRequest(t.Context(), id)
		require.NoError(t, err)
		m, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: copied})
		require.NoError(t, err)
		require.Equal(t, content, m.Content)
		var asked models.Request
		require.NoError(t, d.DB.Take(&asked).Error)
		require.Empty(t, asked.Argument)
	})
}

func TestOnlyTheApplicationServesRequests(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		newRig(t, d, nil) // makes the tables
		o, err := ops.New(d.DB, patient)
		require.NoError(t, err)
		require.ErrorIs(t, o.ServeRequests(t.Context(), "me", nil, ops.ActionCancel), ops.ErrNeedsApplication)
	})
}
