package acceptor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// later returns a message that does not run before a time.
func later(id string, at time.Time) handler.RawMessage {
	m := inboxtest.Message(id)
	m.NotBefore = at
	return m
}

// due returns when a status is due first; zero if at once.
func due(t *testing.T, ib *inbox.Inbox, messageID, handlerKey string) (at time.Time) {
	t.Helper()
	if next := inboxtest.Status(t, ib, messageID, handlerKey).NextAttemptAt; next != nil {
		at = next.UTC()
	}
	return at
}

// TestLaterOfMessagesAndHandlersTimeHolds proves contract 4.8.
func TestLaterOfMessagesAndHandlersTimeHolds(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		hour := clock.Now().Add(time.Hour)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(nothing("plain"), inboxtest.Do("own", inboxtest.Nothing,
				handler.NotBefore(func(m handler.RawMessage) time.Time {
					if m.ID == "none" {
						return time.Time{}
					}
					return hour
				}))))
		zone := time.FixedZone("far", 5*3600)
		_, err := ib.Accept(context.Background(), inboxtest.Message("own"), later("sooner", hour.Add(-time.Minute)),
			later("later", hour.Add(time.Minute+999*time.Nanosecond).In(zone)), later("none", clock.Now().Add(-time.Hour)),
			later("far", clock.Now().AddDate(10, 0, 0)))
		require.NoError(t, err)
		for id, at := range map[string][2]time.Time{
			"own":    {{}, hour},
			"sooner": {hour.Add(-time.Minute), hour},
			"later":  {hour.Add(time.Minute), hour.Add(time.Minute)},
			"none":   {},
			"far":    {clock.Now().AddDate(10, 0, 0), clock.Now().AddDate(10, 0, 0)},
		} {
			require.Equal(t, at[0], due(t, ib, id, "plain"), id)
			require.Equal(t, at[1], due(t, ib, id, "own"), id)
		}
		drained, err := ib.ProcessPending(context.Background())
		require.NoError(t, err)
		require.Equal(t, 3, drained.Completed)
	})
}

func TestTimeThatCannotHoldInvalidatesOneMessage(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(nothing("plain"), inboxtest.Do("own", inboxtest.Nothing,
			handler.NotBefore(func(m handler.RawMessage) time.Time {
				if m.ID == "panics" {
					panic("boom")
				}
				return time.Time{}
			}))))
		results, err := ib.Accept(context.Background(), later("far", time.Now().AddDate(10, 0, 1)), inboxtest.Message("panics"),
			inboxtest.Message("fine"))
		require.ErrorContains(t, err, "more than 10 years ahead")
		require.ErrorContains(t, err, `handler "own"`)
		for i, reason := range []string{"bad_not_before", "bad_not_before"} {
			invalid, ok := errors.AsType[*acceptor.InvalidError](results[i].Err)
			require.True(t, ok)
			require.Equal(t, reason, invalid.Reason)
		}
		require.Equal(t, handler.OutcomeAccepted, results[2].Outcome)
		require.Equal(t, 1, inboxtest.CountMessages(t, ib))
	})
}

func TestDuplicateDoesNotChangeTheTime(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Acceptor.DifferingContent = acceptor.DifferingContentReject
		}), inboxtest.Handlers(nothing("a")))
		hour := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
		for _, m := range []handler.RawMessage{later("1", hour), inboxtest.Message("1"), later("1", hour.Add(time.Hour))} {
			results, err := ib.Accept(context.Background(), m)
			require.NoError(t, err, "another time is no other content")
			require.False(t, results[0].ContentDiffers)
			require.Equal(t, hour, due(t, ib, "1", "a"))
		}
		both := inboxtest.Message("2")
		results, err := ib.Accept(context.Background(), later("2", hour), both)
		require.NoError(t, err)
		require.Equal(t, handler.OutcomeDuplicate, results[1].Outcome)
		require.Equal(t, hour, due(t, ib, "2", "a"))
	})
}

// TestWaitingMessagesWakeNoOne proves that accepts announce a time and not a due status.
func TestWaitingMessagesWakeNoOne(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var at []time.Time
		notified := 0
		r := receiveBy(t, d, func(cfg *acceptor.Config) {
			cfg.WakeAt = func(due time.Time) { at = append(at, due) }
			cfg.NotifyTx = func(context.Context, *gorm.DB, ...string) error { notified++; return nil }
		})
		hour := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
		accept := func(messages ...handler.RawMessage) {
			t.Helper()
			_, err := r.Accept(context.Background(), messages...)
			require.NoError(t, err)
		}
		accept(later("1", hour.Add(time.Minute)), later("2", hour))
		require.Zero(t, r.woken)
		require.Equal(t, []time.Time{hour}, at, "the earliest")
		accept(later("1", hour), inboxtest.Message("2"))
		require.Zero(t, r.woken, "duplicates")
		require.Len(t, at, 1)
		accept(later("3", hour), inboxtest.Message("4"))
		require.Equal(t, 1, r.woken)
		require.Len(t, at, 2)
		accept(later("5", hour.Add(-2*time.Hour)))
		require.Equal(t, 2, r.woken, "a past time is at once")
		require.Len(t, at, 2)

		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			receipt, err := r.AcceptTx(context.Background(), tx, later("6", hour))
			require.NoError(t, err)
			require.Zero(t, notified)
			receipt.Wake()
			return nil
		}))
		require.Equal(t, 2, r.woken)
		require.Len(t, at, 3)
	})
}

// TestLostResponseOfAnAcceptAnnouncesItsTimes proves that a message whose commit may have succeeded is not
// left to the next poll: the retry finds a duplicate, which announces nothing.
func TestLostResponseOfAnAcceptAnnouncesItsTimes(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var at []time.Time
		r := receiveBy(t, d, func(cfg *acceptor.Config) {
			cfg.Store = unanswered{cfg.Store}
			cfg.WakeAt = func(due time.Time) { at = append(at, due) }
		})
		hour := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
		_, err := r.Accept(context.Background(), later("1", hour))
		require.Error(t, err)
		require.Equal(t, []time.Time{hour}, at)
		require.Zero(t, r.woken)
	})
}

// unanswered is a store whose accepts are committed while their responses are lost.
type unanswered struct{ store.Acceptor }

func (l unanswered) Accept(ctx context.Context, batch store.AcceptBatch) ([]store.Accepted, error) {
	if _, err := l.Acceptor.Accept(ctx, batch); err != nil {
		return nil, err
	}
	return nil, store.FailedCommit(context.DeadlineExceeded)
}

// TestRejectedRecordAcceptedAgainHasItsTime proves contract 4.8: the record's own time, as if it came now.
func TestRejectedRecordAcceptedAgainHasItsTime(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		decoder, err := envelope.NewDecoder(envelope.DecoderConfig{NotBeforeHeader: "not-before", Type: "t"}, nil)
		require.NoError(t, err)
		r := receiveBy(t, d, func(cfg *acceptor.Config) {
			cfg.Decoders = map[string]*envelope.Decoder{"c": decoder}
		})
		hour := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
		record := bad(0, errMangled)
		record.Record.Headers = []handler.Header{{Key: "MessageId", Value: []byte("1")},
			{Key: "not-before", Value: []byte(hour.Format(time.RFC3339Nano))}}
		r.accept(record)
		_, err = r.AcceptRejected(context.Background(), r.rejected()[0].ID)
		require.NoError(t, err)
		var status models.HandlerStatus
		require.NoError(t, d.DB.Take(&status).Error)
		require.Equal(t, hour, status.NextAttemptAt.UTC())

		record.Record.Offset, record.Record.Headers[1].Value = 1, []byte(hour.AddDate(11, 0, 0).Format(time.RFC3339))
		record.Record.Headers[0].Value = []byte("2")
		r.accept(record)
		_, err = r.AcceptRejected(context.Background(), r.rejected()[0].ID)
		require.ErrorContains(t, err, "more than 10 years ahead")
	})
}
