package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// Contract 3.7: a dry run would complete statuses whose handlers have written nothing.
func TestUnwritableSessionsAreRefused(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ctx := t.Context()
		orders := namedInbox(t, "orders", d.DB)
		markers, err := gormstore.New(d.DB)
		require.NoError(t, err)
		failed := errors.New("an earlier statement failed")
		broken := d.DB.Session(&gorm.Session{})
		require.ErrorIs(t, broken.AddError(failed), failed)
		refusals := map[string]func(error){
			"dry run": func(err error) { require.ErrorContains(t, err, "DryRun") },
			"error":   func(err error) { require.ErrorIs(t, err, failed) },
		}
		for name, spoil := range map[string]func(db *gorm.DB) *gorm.DB{
			"dry run": func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{DryRun: true}) },
			"error": func(db *gorm.DB) *gorm.DB {
				db = db.Session(&gorm.Session{})
				_ = db.AddError(failed)
				return db
			},
		} {
			refused := refusals[name]
			spoiled := spoil(d.DB)
			_, err := inbox.New("orders", spoiled, inboxtest.Handlers(nothing("h")))
			refused(err)
			app := fx.New(fx.NopLogger, fx.Supply(fx.Annotate(spoiled, fx.ResultTags(`name:"orders"`))),
				inbox.Module("orders", inboxtest.Handlers(nothing("h"))))
			refused(app.Err())
			_, err = ops.New(spoiled)
			refused(err)
			_, err = gormstore.New(spoiled)
			refused(err)
			refused(models.Migrate(ctx, spoiled, models.Naming{}, "orders"))
			refused(models.CheckSchema(ctx, spoiled, models.Naming{}, "orders"))
			require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
				_, err := orders.AcceptTx(ctx, spoil(tx), inboxtest.Message("1"))
				refused(err)
				run := idempotent.Run{Key: idempotent.Key{MessageID: "1", HandlerKey: "h"}}
				_, err = markers.Mark(ctx, spoil(tx), run)
				refused(err)
				_, err = markers.Run(gormstore.WithTx(ctx, spoil(tx)), run, func(context.Context) error {
					t.Error("the body runs")
					return nil
				})
				refused(err)
				return nil
			}))
			require.Zero(t, inboxtest.CountMessages(t, orders))
		}
	})
}
