package wiring

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
)

// application is the whole application on a database.
func application(db *gorm.DB) fx.Option {
	cfg := &Config{Brokers: []string{"localhost:9092"}, Inbox: inbox.DefaultOptions()}
	cfg.Inbox.Migrate = true
	return fx.Options(fx.NopLogger, orders(), Invoicing,
		fx.Supply(cfg, &tls.Config{MinVersion: tls.VersionTLS13}, &Timing{}, &Sessions{map[string]string{"1": "ann"}},
			fx.Annotate(db, fx.ResultTags(`name:"orders"`))),
		fx.Provide(http.NewServeMux))
}

//page:begin validate

func TestApplicationIsWired(t *testing.T) {
	require.NoError(t, fx.ValidateApp(application(nil)))
}

//page:end

func TestFeatureHandlesAcceptedMessages(t *testing.T) {
	db := fxtest.OpenDB(t)
	require.NoError(t, db.AutoMigrate(&Reservation{}))
	var kit *fxtest.Kit
	var timing *Timing
	var mux *http.ServeMux
	fxtest.App(t, application(db), fxtest.Manual(), fxtest.Use(t, "orders", &kit), fx.Populate(&timing, &mux))
	kit.Accept(fxtest.JSON("orders.events", "order.placed", "o-1", OrderPlaced{"o-1"}))
	kit.Process()
	kit.RequireCompleted("o-1", "reserve-stock")
	kit.RequireCompleted("o-1", "invoice-order")
	kit.Process()
	reminder := fxtest.JSON("invoicing.reminders", "reminder.due", "o-1", ReminderDue{"o-1"})
	require.Equal(t, "duplicate", string(kit.Accept(reminder)[0].Outcome))
	require.EqualValues(t, 3, timing.calls.Load())

	request := httptest.NewRequest(http.MethodGet, "/orders/inbox/", http.NoBody)
	request.Header.Set("Session", "1")
	page := httptest.NewRecorder()
	mux.ServeHTTP(page, request)
	require.Equal(t, http.StatusOK, page.Code)
}
