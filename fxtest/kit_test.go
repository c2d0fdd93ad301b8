package fxtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/processor"
)

type placed struct{ Total int }

// bank is a handler from the Fx graph that fails for a number of attempts.
type bank struct {
	away    int
	charged []int
}

func (b *bank) Handle(_ context.Context, m handler.Message[placed]) error {
	if m.Attempt <= b.away {
		return errors.New("the bank is away")
	}
	b.charged = append(b.charged, m.Payload.Total)
	return nil
}

func orders(handlers ...*inbox.HandlerSpec) inbox.Option {
	return inbox.Channel("orders", inbox.On("order.placed", handlers...))
}

func nothing(context.Context, handler.Message[placed]) error { return nil }

func TestKitRunsAHandlerThroughFailureToCompletion(t *testing.T) {
	charging := &bank{away: 2}
	kit := fxtest.NewWithFx(t, fx.Supply(charging), orders(inbox.From[*bank]("charge")))
	require.Equal(t, fxtest.Start, kit.Now())

	kit.RequireNotAccepted("o-1")
	results := kit.Accept(fxtest.JSON("orders", "order.placed", "o-1", placed{12}))
	require.Equal(t, handler.OutcomeAccepted, results[0].Outcome)
	message := kit.RequireAccepted("o-1")
	require.JSONEq(t, `{"Total":12}`, string(message.Content))
	require.Equal(t, "application/json", message.ContentType)
	require.Equal(t, fxtest.Start, message.ReceivedAt.UTC())
	kit.RequirePending("o-1", "charge")

	require.Equal(t, processor.Drained{Picked: 1, Failed: 1}, kit.Process())
	failed := kit.RequireFailed("o-1", "charge")
	require.Equal(t, "the bank is away", *failed.LastError)
	require.Equal(t, processor.Drained{}, kit.Process(), "the retry is not due before the clock moves")

	kit.Advance(2 * time.Second) // the longest first backoff
	require.Equal(t, processor.Drained{Picked: 1, Failed: 1}, kit.Process())
	require.Equal(t, 2, kit.RequireFailed("o-1", "charge").ErrorCount)
	kit.Advance(4 * time.Second)
	require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, kit.Process())
	done := kit.RequireCompleted("o-1", "charge")
	require.Equal(t, fxtest.Start.Add(6*time.Second), done.CompletedAt.UTC())
	require.Equal(t, []int{12}, charging.charged)
}

func TestProcessAllMovesTheClockFromAttemptToAttempt(t *testing.T) {
	kit := fxtest.New(t, inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 4 }), orders(
		inbox.Func("heal", (&bank{away: 3}).Handle),
		inbox.Func("never", (&bank{away: 1000}).Handle),
	))
	kit.Accept(fxtest.JSON("orders", "order.placed", "o-1", placed{}))
	require.Equal(t, processor.Drained{Picked: 8, Completed: 1, Failed: 6, Poisoned: 1}, kit.ProcessAll())
	kit.RequireCompleted("o-1", "heal")
	require.Equal(t, 4, kit.RequirePoisoned("o-1", "never").ErrorCount)
	took := kit.Now().Sub(fxtest.Start)
	require.GreaterOrEqual(t, took, 7*time.Second)
	require.LessOrEqual(t, took, 14*time.Second)
}

func TestAdvancedClockRunsMessagesThatWait(t *testing.T) {
	kit := fxtest.New(t, orders(inbox.Func("h", nothing)))
	m := fxtest.JSON("orders", "order.placed", "o-1", placed{})
	m.NotBefore = kit.Now().Add(time.Hour)
	kit.Accept(m)
	kit.Advance(time.Hour - time.Microsecond)
	require.Zero(t, kit.Process())
	kit.RequirePending("o-1", "h")
	require.Contains(t, failure(t, kit, func(k *fxtest.Kit) { k.RequireCompleted("o-1", "h") }),
		"is pending, not before 2026-01-01T13:00:00Z, 0 errors charged")
	kit.Advance(time.Microsecond)
	require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, kit.Process())

	m.ID, m.NotBefore = "o-2", kit.Now().AddDate(9, 0, 0)
	kit.Accept(m)
	require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, kit.ProcessAll(), "it moves the clock there")
}

func TestProcessRunsMessagesAcceptedByHandlers(t *testing.T) {
	var kit *fxtest.Kit
	kit = fxtest.New(t,
		orders(inbox.Func("order", func(ctx context.Context, m handler.Message[placed]) error {
			_, err := kit.Inbox.Accept(ctx, fxtest.JSON("parcels", "packed", "p-"+m.ID, nil))
			return err
		})),
		inbox.Channel("parcels", inbox.On("packed", inbox.Tx("send",
			func(context.Context, *gorm.DB, handler.Message[[]byte]) error { return nil }))),
	)
	kit.Accept(fxtest.JSON("orders", "order.placed", "1", placed{}))
	require.Equal(t, 2, kit.Process().Completed)
	kit.RequireCompleted("p-1", "send")
}

func TestFailedRequirementsNameTheActualServer(t *testing.T) {
	kit := fxtest.New(t, inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 2 }), orders(
		inbox.Func("ok", nothing), inbox.Func("bad", (&bank{away: 1000}).Handle),
	))
	t.Run("nothing accepted", func(t *testing.T) {
		require.Equal(t, `fxtest: message "o-1" was never accepted, or is cleaned`, failure(t, kit, func(k *fxtest.Kit) {
			k.RequireAccepted("o-1")
		}))
		require.Equal(t, `fxtest: not completed: message "o-1" was never accepted, or is cleaned`,
			failure(t, kit, func(k *fxtest.Kit) {
				k.RequireCompleted("o-1", "ok")
			}))
	})
	kit.Accept(fxtest.JSON("orders", "order.placed", "o-1", placed{}))
	t.Run("accepted and pending", func(t *testing.T) {
		require.Equal(t, `fxtest: message "o-1" is accepted`, failure(t, kit, func(k *fxtest.Kit) {
			k.RequireNotAccepted("o-1")
		}))
		require.Equal(t, `fxtest: not completed: message "o-1", handler key "ok" is pending, due now, 0 errors charged`,
			failure(t, kit, func(k *fxtest.Kit) { k.RequireCompleted("o-1", "ok") }))
		require.Equal(t, `fxtest: not poisoned: message "o-1" has no status under handler key "other", only under bad, ok`,
			failure(t, kit, func(k *fxtest.Kit) { k.RequirePoisoned("o-1", "other") }))
	})
	kit.Process()
	t.Run("failed", func(t *testing.T) {
		text := failure(t, kit, func(k *fxtest.Kit) { k.RequirePoisoned("o-1", "bad") })
		require.Regexp(t,
			`^fxtest: not poisoned: message "o-1", handler key "bad" is pending, next attempt at 2026-01-01T12:00:0[12][.0-9]*Z, 1 errors charged\nlast error: the bank is away$`, text)
		text = failure(t, kit, func(k *fxtest.Kit) { k.RequireFailed("o-1", "ok") })
		require.Regexp(t,
			`^fxtest: not failed and waiting .* is completed \(processed\) at 2026-01-01T12:00:00Z, 0 errors charged$`, text)
	})
	kit.ProcessAll()
	t.Run("poisoned", func(t *testing.T) {
		require.Equal(t,
			"fxtest: not completed: message \"o-1\", handler key \"bad\" is poisoned, 2 errors charged\nlast error: the bank is away",
			failure(t, kit, func(k *fxtest.Kit) { k.RequireCompleted("o-1", "bad") }))
	})
	t.Run("invalid message", func(t *testing.T) {
		require.Contains(t, failure(t, kit, func(k *fxtest.Kit) {
			k.Accept(fxtest.JSON("orders", "order.placed", "", placed{}))
		}), "fxtest: accept: inbox \"\": message \"\" is invalid: missing_id")
	})
}

func TestKitsAreIsolated(t *testing.T) {
	one, two := fxtest.New(t, orders(inbox.Func("h", nothing))), fxtest.New(t, orders(inbox.Func("h", nothing)))
	one.Accept(fxtest.JSON("orders", "order.placed", "o-1", placed{}))
	two.RequireNotAccepted("o-1")
	one.Advance(time.Hour)
	require.Equal(t, fxtest.Start, two.Now())
}

func TestWrongDeclarationFailsTheTest(t *testing.T) {
	said := run(t, func(t testing.TB) { fxtest.New(t, orders(inbox.From[*bank]("charge"))) })
	require.Contains(t, said,
		`channel orders, type order.placed, handler charge"]: `)
}

func TestJSONPanicsIfMarshallingFails(t *testing.T) {
	require.PanicsWithValue(t, `fxtest: message "1": json: unsupported type: chan int`, func() {
		fxtest.JSON("c", "t", "1", make(chan int))
	})
}
