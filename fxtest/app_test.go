package fxtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	uberfxtest "go.uber.org/fx/fxtest"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

// shop is an application as a user would write it. Only its database is a parameter.
func shop(db *gorm.DB) fx.Option {
	return fx.Options(
		fx.Supply(fx.Annotate(db, fx.ResultTags(`name:"shop"`)), &bank{away: 1}),
		inbox.Module("shop", inbox.Configure(func(o *inbox.Options) {
			o.Migrate = true
			o.Processor.MaxRetries = 3
		}),
			orders(inbox.From[*bank]("charge"),
				inbox.Func("reject", func(context.Context, handler.Message[placed]) error {
					return handler.Poison(errors.New("no such customer"))
				})),
		),
	)
}

func TestManualAppProcessesNothingByItself(t *testing.T) {
	var kit *fxtest.Kit
	fxtest.App(t, shop(fxtest.OpenDB(t)), fxtest.Manual(), fxtest.Use(t, "shop", &kit))
	require.WithinDuration(t, time.Now(), kit.Now(), time.Minute)
	require.False(t, kit.Inbox.Health().Processor.Running)

	kit.Accept(fxtest.JSON("orders", "order.placed", "o-1", placed{1}))
	require.Equal(t, processor.Drained{Picked: 2, Failed: 1, Poisoned: 1}, kit.Process())
	kit.RequireFailed("o-1", "charge")
	kit.RequirePoisoned("o-1", "reject")
	kit.ProcessAll()
	kit.RequireCompleted("o-1", "charge")
}

func TestWaitsForMessagesAndRecordsReturnThem(t *testing.T) {
	kit := fxtest.New(t, orders(inbox.Func("ok", nothing)))
	later := func(do func() error) {
		done := make(chan error, 1)
		go func() { done <- do() }()
		t.Cleanup(func() { require.NoError(t, <-done) })
	}
	const within = testenv.Patience
	require.Equal(t, `fxtest: not accepted within 20ms: message "o-1"`,
		run(t, func(t testing.TB) { fxtest.WaitAccepted(t, kit.Inbox, 20*time.Millisecond, "o-1") }))
	later(func() error {
		_, err := kit.Inbox.Accept(context.Background(), fxtest.JSON("orders", "order.placed", "o-1", placed{1}))
		return err
	})
	require.Equal(t, "order.placed", fxtest.WaitAccepted(t, kit.Inbox, within, "o-1").Type)

	reject := func(channel, id, reason string, offset int64) error {
		return kit.DB.Clauses(kit.Inbox.Tables()).Create(&models.RejectedMessage{ID: id, Channel: channel, Topic: "t",
			Offset: offset, Timestamp: fxtest.Start, Headers: "[]", Reason: reason,
			RejectedAt: fxtest.Start.Add(time.Duration(offset))}).Error
	}
	require.NoError(t, reject("other", "0190a0e0-0000-7000-8000-000000000001", "not ours", 1))
	require.Equal(t, `fxtest: nothing rejected within 20ms on channel "orders"`,
		run(t, func(t testing.TB) { fxtest.WaitRejected(t, kit.Inbox, 20*time.Millisecond, "orders") }))
	later(func() error { return reject("orders", "0190a0e0-0000-7000-8000-000000000002", "no type", 2) })
	require.Equal(t, "no type", fxtest.WaitRejected(t, kit.Inbox, within, "orders").Reason)
	require.NoError(t, reject("orders", "0190a0e0-0000-7000-8000-000000000003", "no ID", 3))
	require.Equal(t, "no ID", fxtest.WaitRejected(t, kit.Inbox, within, "orders").Reason, "the latest")
}

func TestRunningAppIsWaitedFor(t *testing.T) {
	var kit *fxtest.Kit
	fxtest.App(t, shop(fxtest.OpenDB(t)), fxtest.Use(t, "shop", &kit))
	require.Nil(t, kit.Clock)
	kit.Accept(fxtest.JSON("orders", "order.placed", "o-1", placed{1}))

	const within = testenv.Patience
	fxtest.WaitPoisoned(t, kit.Inbox, within, "o-1", "reject")
	fxtest.WaitFailed(t, kit.Inbox, within, "o-1", "charge")
	require.Equal(t, 1, fxtest.WaitCompleted(t, kit.Inbox, within, "o-1", "charge").ErrorCount)

	t.Run("a hopeless wait ends immediately", func(t *testing.T) {
		require.Contains(t, run(t, func(t testing.TB) { fxtest.WaitCompleted(t, kit.Inbox, time.Hour, "o-1", "reject") }),
			"fxtest: will not be completed: message \"o-1\", handler key \"reject\" is poisoned, 1 errors charged\nlast error: poison: no such customer")
	})
	t.Run("a wait ends in time", func(t *testing.T) {
		require.Equal(t, `fxtest: not completed within 20ms: message "o-2" was never accepted, or is cleaned`,
			run(t, func(t testing.TB) { fxtest.WaitCompleted(t, kit.Inbox, 20*time.Millisecond, "o-2", "charge") }))
	})
	t.Run("the clock belongs to the system", func(t *testing.T) {
		require.Contains(t, failure(t, kit, func(k *fxtest.Kit) { k.Advance(time.Second) }), "fxtest.Manual()")
	})
}

// Manual and Use are options of any Fx application, such as one of Fx's own test kit.
func TestManualAndUseWorkWithTheTestKitOfFx(t *testing.T) {
	var kit *fxtest.Kit
	db := fxtest.OpenDB(t)
	app := uberfxtest.New(t, shop(db), fxtest.Manual(), fxtest.Use(t, "shop", &kit),
		inbox.Extend("shop", inbox.Subscribe("orders", "order.placed",
			inbox.Func("note", func(context.Context, handler.Message[placed]) error { return nil }))))
	app.RequireStart()
	kit.Accept(fxtest.JSON("orders", "order.placed", "o-1", placed{1}))
	kit.Process()
	kit.RequireCompleted("o-1", "note")
	kit.Advance(time.Hour)
	kit.ProcessAll()
	kit.RequireCompleted("o-1", "charge")
	app.RequireStop()
}
