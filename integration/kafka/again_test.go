package kafka

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// oneAttempt gives every message one attempt, so that it is rejected at once.
func oneAttempt(s settings) settings {
	s.options = append(s.options, inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 1 }))
	return s
}

// rejectedOne waits for the records that are sent, and returns the only rejected one.
func (r *directRig) rejectedOne(t *testing.T, ib *inbox.Inbox) models.RejectedMessage {
	t.Helper()
	r.awaitCommitted(t)
	rows := r.rejected(t, ib)
	require.Len(t, rows, 1)
	return rows[0]
}

func opsOf(t *testing.T, ib *inbox.Inbox) *ops.Ops {
	t.Helper()
	o, err := ib.Ops()
	require.NoError(t, err)
	return o
}

// reAccepts returns the details of the audit rows of accepting again, the first one first.
func reAccepts(t *testing.T, o *ops.Ops) (details []string) {
	t.Helper()
	page, err := o.Audit(t.Context(), ops.AuditFilter{Action: ops.ActionReAccept}, "", 100)
	require.NoError(t, err)
	for _, e := range slices.Backward(page.Items) {
		require.Equal(t, ops.Actor("ada"), e.Actor)
		details = append(details, e.Detail)
	}
	return details
}

// TestRejectedInlineRecordRunsAgain proves contract 7.4, 7.6: only what has not processed the message runs, once for
// each call, and the row goes when all have.
func TestRejectedInlineRecordRunsAgain(t *testing.T) {
	memory := func() idempotent.Store {
		s, err := memstore.New()
		require.NoError(t, err)
		return s
	}
	for name, options := range map[string][]inbox.InlineOption{
		"own table":     inlined,
		"another store": nil,
		"duplicates make it bad": {inbox.InlineDefaults(idempotent.Configure(func(o *idempotent.Options) {
			o.Duplicates = idempotent.FailDuplicates
		}))},
	} {
		t.Run(name, func(t *testing.T) {
			onInline(t, 1, func(t *testing.T, r *directRig) {
				opts := options
				if opts == nil {
					opts = []inbox.InlineOption{inbox.InlineStore(memory())}
				}
				var fixed atomic.Bool
				r.send(t, 0, "m1")
				ib, _ := r.run(t, oneAttempt(settings{inline: opts}), r.tx("tx", r.done), r.plain("plain", r.done),
					r.tx("payment", func(ctx context.Context, m inboxtest.Bytes) error {
						if !fixed.Load() {
							return errBoom
						}
						return nil
					}))
				row, o := r.rejectedOne(t, ib), opsOf(t, ib)
				require.Contains(t, row.Reason, `handler "payment" gave up message`)
				require.Equal(t, oneEach("plain m1", "tx m1"), r.effects(t))

				inboxtest.Exec(t, ib.DB(), "UPDATE inbox_rejected_messages SET reason = 'old'")
				_, err := o.ReAccept(t.Context(), "ada", row.ID)
				var still *handler.StillBadError
				require.ErrorAs(t, err, &still)
				require.Contains(t, r.rejected(t, ib)[0].Reason, `handler "payment" gave up message`)
				require.Equal(t, oneEach("plain m1", "tx m1"), r.effects(t))
				require.Len(t, r.of("payment"), 2, "one attempt each")

				fixed.Store(true)
				accepted, err := o.ReAccept(t.Context(), "ada", row.ID)
				require.NoError(t, err)
				require.Len(t, accepted, 1)
				require.Equal(t, []any{handler.OutcomeProcessed, 1}, []any{accepted[0].Outcome, accepted[0].Handlers})
				require.Equal(t, oneEach("plain m1", "tx m1", "payment m1"), r.effects(t))
				require.Empty(t, r.rejected(t, ib))
				require.Equal(t, []string{`{"event":"begun"}`, `{}`, `{"event":"begun"}`, `{}`}, reAccepts(t, o))
				_, err = o.ReAccept(t.Context(), "ada", row.ID)
				require.ErrorIs(t, err, ops.ErrNotFound)
				_, err = ib.AcceptRejected(t.Context(), row.ID)
				require.ErrorIs(t, err, acceptor.ErrRejectedNotFound)

				r.send(t, 0, "m1") // a redelivery
				r.awaitCommitted(t)
				require.Equal(t, oneEach("plain m1", "tx m1", "payment m1"), r.effects(t))
			})
		})
	}
}

// TestRunningProgramRunsRequestedInlineRecord proves contract 11.1: a program that has the tables only, such
// as inboxctl, requests it, and one that declares the channel runs the handlers.
func TestRunningProgramRunsRequestedInlineRecord(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		var fixed atomic.Bool
		r.send(t, 0, "m1")
		often := inbox.Configure(func(o *inbox.Options) { o.Processor.HeartbeatInterval = 50 * time.Millisecond })
		s := oneAttempt(settings{inline: inlined})
		s.options = append(s.options, often)
		ib, end := r.run(t, s, r.tx("tx", r.done), r.tx("payment", func(ctx context.Context, m inboxtest.Bytes) error {
			if !fixed.Load() {
				return errBoom
			}
			return r.done(ctx, m)
		}))
		row := r.rejectedOne(t, ib)
		asking, err := ops.New(ib.DB())
		require.NoError(t, err)
		require.NoError(t, asking.RequestReAccept(t.Context(), "ada", row.ID))
		inboxtest.Eventually(t, func() bool { return len(reAccepts(t, asking)) == 3 }, "it ran and failed")
		require.Len(t, r.of("payment"), 2)
		require.Nil(t, r.rejected(t, ib)[0].RequestedAt)

		fixed.Store(true)
		counted, err := asking.RequestReAcceptMatching(t.Context(), "ada", ops.RejectedFilter{Channel: "c"}, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 1, counted.Done)
		inboxtest.Eventually(t, func() bool { return len(r.rejected(t, ib)) == 0 }, "it ran")
		require.Equal(t, oneEach("tx m1", "payment m1"), r.effects(t))
		end()
	})
}

// TestRejectedDirectRecordRunsAllHandlersAgain proves contract 7.6: at least once, as everything on a Direct channel.
func TestRejectedDirectRecordRunsAllHandlersAgain(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		var fixed atomic.Bool
		r.send(t, 0, "m1")
		ib, _ := r.run(t, oneAttempt(settings{}), r.plain("fine", r.done),
			r.plain("bad", func(context.Context, inboxtest.Bytes) error {
				if !fixed.Load() {
					return errBoom
				}
				return nil
			}))
		row := r.rejectedOne(t, ib)
		fixed.Store(true)
		results, err := ib.AcceptRejected(t.Context(), row.ID)
		require.NoError(t, err)
		require.Equal(t, []acceptor.Result{{MessageID: "m1", Outcome: handler.OutcomeProcessed, Handlers: 2}}, results)
		require.Equal(t, map[string]int{"fine m1": 2, "bad m1": 2}, r.effects(t), "plain handlers' writes")
		require.Empty(t, r.rejected(t, ib))
	})
}

// TestRejectedInlineRecordWithoutIDRunsAgain proves contract 4.4, 7.4: nothing is remembered of it, so all run.
func TestRejectedInlineRecordWithoutIDRunsAgain(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		var fixed atomic.Bool
		r.send(t, 0, "")
		lax := func(c *kafkaconsumer.Config) { c.Decoder.AllowMissingID = true }
		ib, _ := r.run(t, oneAttempt(settings{inline: inlined, config: []func(*kafkaconsumer.Config){lax}}),
			r.tx("fine", r.done), r.tx("bad", func(context.Context, inboxtest.Bytes) error {
				if !fixed.Load() {
					return errBoom
				}
				return nil
			}))
		row := r.rejectedOne(t, ib)
		fixed.Store(true)
		_, err := ib.AcceptRejected(t.Context(), row.ID)
		require.NoError(t, err)
		require.Equal(t, map[string]int{"fine ": 2, "bad ": 1}, r.effects(t))
		require.Empty(t, r.rejected(t, ib))
		require.Empty(t, r.markers(t))
	})
}

// TestRecordOfAPausedHandlerDoesNotRunAgain proves contract 5.13, 7.4.
func TestRecordOfAPausedHandlerDoesNotRunAgain(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		r.send(t, 0, "m1")
		ib, _ := r.run(t, oneAttempt(settings{inline: inlined}), r.tx("fine", r.done),
			r.tx("bad", func(context.Context, inboxtest.Bytes) error { return errBoom }))
		row, o := r.rejectedOne(t, ib), opsOf(t, ib)
		require.NoError(t, o.Pause(t.Context(), "ada", "bad"))
		before := len(r.of("bad"))
		_, err := o.ReAccept(t.Context(), "ada", row.ID)
		require.ErrorIs(t, err, ops.ErrPaused)
		require.ErrorContains(t, err, `handler "bad" is paused`)
		require.Len(t, r.of("bad"), before)
		require.Equal(t, []models.RejectedMessage{row}, r.rejected(t, ib))
		result, err := o.ReAcceptMatching(t.Context(), "ada", ops.RejectedFilter{Channel: "c"}, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 1, result.Skipped)
	})
}

// TestAllMatchingInlineRecordsRunAgain proves contract 11.1.
func TestAllMatchingInlineRecordsRunAgain(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		var fixed atomic.Bool
		r.send(t, 0, "m1", "m2", "m3", "bad")
		ib, _ := r.run(t, oneAttempt(settings{inline: inlined}), r.tx("h", func(_ context.Context, m inboxtest.Bytes) error {
			if !fixed.Load() || m.ID == "bad" {
				return errBoom
			}
			return nil
		}))
		r.awaitCommitted(t)
		require.Len(t, r.rejected(t, ib), 4)
		fixed.Store(true)
		o := opsOf(t, ib)
		elsewhere, err := ops.New(r.database.Another(t))
		require.NoError(t, err)
		filter := ops.RejectedFilter{Channel: "c", Reason: "boom"}
		_, err = elsewhere.ReAcceptMatching(t.Context(), "ada", filter, ops.Bulk{})
		require.ErrorIs(t, err, ops.ErrNeedsApplication)
		counted, err := elsewhere.ReAcceptMatching(t.Context(), "ada", filter, ops.Bulk{DryRun: true})
		require.NoError(t, err)
		result, err := o.ReAcceptMatching(t.Context(), "ada", filter, ops.Bulk{Max: counted.Matched.N})
		require.NoError(t, err)
		require.Equal(t, []int64{3, 1, 0, 0}, []int64{result.Done, result.StillBad, result.Skipped, result.Duplicates})
		require.Equal(t, oneEach("h m1", "h m2", "h m3"), r.effects(t))
		require.Len(t, r.rejected(t, ib), 1)
	})
}

// TestRerunEndsWithItsRequestOrTheInbox proves contract 7.4: whatever a handler does, the caller
// gets its answer in time, a second call is refused, and a stop is not held up.
func TestRerunEndsWithItsRequestOrTheInbox(t *testing.T) {
	for _, ending := range []string{"deadline", "stop"} {
		t.Run(ending, func(t *testing.T) {
			onInline(t, 1, func(t *testing.T, r *directRig) {
				var again atomic.Bool
				entered, open := make(chan struct{}, 10), make(chan struct{})
				t.Cleanup(func() { close(open) })
				r.send(t, 0, "m1")
				bad := func(context.Context, inboxtest.Bytes) error {
					if again.Load() {
						entered <- struct{}{}
						<-open // ignores that its context ends
					}
					return errBoom
				}
				ib, stop := r.run(t, oneAttempt(settings{inline: inlined}), r.handler("bad", bad))
				row, o := r.rejectedOne(t, ib), opsOf(t, ib)
				again.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), inboxtest.Patience)
				defer cancel()
				if ending == "deadline" {
					ctx, cancel = context.WithTimeout(ctx, 8*time.Second)
					defer cancel()
				}
				ended := make(chan error, 1)
				go func() {
					_, err := o.ReAccept(ctx, "ada", row.ID)
					ended <- err
				}()
				inboxtest.Receive(t, entered, "the handler")
				_, err := o.ReAccept(t.Context(), "bob", row.ID)
				require.ErrorIs(t, err, ops.ErrProcessing)
				if ending == "stop" {
					stop()
				}
				err = inboxtest.Receive(t, ended, "the answer")
				require.Error(t, err)
				if ending == "deadline" {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.NoError(t, ctx.Err(), "in time")
				}
				require.Equal(t, []models.RejectedMessage{row}, r.rejected(t, ib), "nothing has changed")
			})
		})
	}
}
