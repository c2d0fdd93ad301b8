package mysql

import (
	"context"
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
)

// TestTableByHandIsMovedOnce moves the open messages twice, as after a crash. Each message has one effect, also one
// that comes again after the old program has processed it.
func TestTableByHandIsMovedOnce(t *testing.T) {
	db := testenv.Open(t, mysql.Open(testenv.MySQLDSN(t, testenv.MariaDBVariable)), gorm.Config{})
	require.NoError(t, db.AutoMigrate(&oldMessage{}))
	now := time.Now()
	require.NoError(t, db.Create(&[]oldMessage{
		{MessageID: "done", Type: "order.placed", Body: []byte(`{}`), ProcessedAt: &now},
		{MessageID: "open", Type: "order.placed", Body: []byte(`{"OrderID": "o-1"}`)},
	}).Error)
	var handled []string
	note := func(_ context.Context, _ *gorm.DB, m handler.Message[OrderPlaced]) error {
		handled = append(handled, m.ID+" "+m.Payload.OrderID)
		return nil
	}
	var kit *fxtest.Kit
	fxtest.App(t, fx.NopLogger, fxtest.Manual(), fx.Supply(db), inbox.Module("",
		inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
		inbox.Channel("orders.events", inbox.On("order.placed", inbox.Tx("book-order", unlessDone(note))))),
		fxtest.Use(t, "", &kit))
	for range 2 {
		require.NoError(t, acceptOpen(t.Context(), db, kit.Inbox))
	}
	kit.Accept(fxtest.JSON("orders.events", "order.placed", "done", OrderPlaced{"o-0"})) // resent by its producer
	kit.Process()
	require.Equal(t, []string{"open o-1"}, handled)
	kit.RequireCompleted("done", "book-order")
}

func TestServerThatIsAwayIsAnError(t *testing.T) {
	_, err := openMySQL("app", "secret", "127.0.0.1:1", "orders")
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NotContains(t, err.Error(), "secret")
}
