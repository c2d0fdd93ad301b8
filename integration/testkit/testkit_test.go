// Package testkit runs the users' test kit, fxtest, on MariaDB. The module of the kit has no driver for it.
package testkit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type placed struct{ Total int }

// TestKitWorksOnMariaDB proves contract 13 for an application whose database is MariaDB: the test moves the clock and
// runs the handlers.
func TestKitWorksOnMariaDB(t *testing.T) {
	db := testenv.Open(t, mysql.Open(testenv.MySQLDSN(t, testenv.MariaDBVariable)), gorm.Config{})
	open := false // whether the bank is open
	var kit *fxtest.Kit
	fxtest.App(t, fx.Supply(fx.Annotate(db, fx.ResultTags(`name:"shop"`))), fx.NopLogger,
		inbox.Module("shop", inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
			inbox.Channel("orders", inbox.On("order.placed",
				inbox.Tx("charge", func(context.Context, *gorm.DB, handler.Message[placed]) error {
					if !open {
						return errors.New("the bank is closed")
					}
					return nil
				}),
				inbox.Func("reject", func(context.Context, handler.Message[placed]) error {
					return handler.Poison(errors.New("no such customer"))
				})))),
		fxtest.Manual(), fxtest.Use(t, "shop", &kit))

	kit.Accept(fxtest.JSON("orders", "order.placed", "o-1", placed{1}))
	require.Equal(t, processor.Drained{Picked: 2, Failed: 1, Poisoned: 1}, kit.Process())
	kit.RequireFailed("o-1", "charge")
	kit.RequirePoisoned("o-1", "reject")
	require.Zero(t, kit.Process(), "the retry is not due yet")
	open = true
	kit.Advance(time.Minute)
	kit.Process()
	kit.RequireCompleted("o-1", "charge")

	require.NoError(t, kit.DB.Clauses(kit.Inbox.Tables()).Create(&models.RejectedMessage{
		ID: "0190a0e0-0000-7000-8000-000000000001", Channel: "orders", Topic: "t", Timestamp: kit.Now(), Headers: "[]",
		Reason: "no type", RejectedAt: kit.Now()}).Error)
	require.Equal(t, "no type", fxtest.WaitRejected(t, kit.Inbox, testenv.Patience, "orders").Reason)
}
