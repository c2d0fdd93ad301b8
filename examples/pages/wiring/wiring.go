// Package wiring is the code of docs/fx.md.
package wiring

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync/atomic"

	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/dashboard/dashboardfx"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

type (
	// OrderPlaced and ReminderDue are payloads.
	OrderPlaced struct{ OrderID string }
	ReminderDue struct{ OrderID string }

	// Config is the application's, as its YAML has it.
	Config struct {
		Brokers []string      `yaml:"brokers"`
		Inbox   inbox.Options `yaml:"inbox"`
	}

	// Sessions knows who is signed in.
	Sessions struct{ signedIn map[string]string }

	// Reservation is a row of the application.
	Reservation struct {
		Number  int64 `gorm:"primaryKey"`
		OrderID string
	}
)

// Principal is a dashboard's Authorizer.
func (s *Sessions) Principal(r *http.Request) (dashboard.Principal, error) {
	return dashboard.Principal{Actor: s.signedIn[r.Header.Get("Session")], Role: dashboard.Operator}, nil
}

// Timing observes calls of handlers.
type Timing struct{ calls atomic.Int64 }

// Middleware counts one call.
func (t *Timing) Middleware(ctx context.Context, _ handler.Call, next func(context.Context) error) error {
	t.calls.Add(1)
	return next(ctx)
}

// orders is the module that declares the inbox.
func orders() fx.Option {
	return fx.Options(
		//page:begin config
		inbox.Module("orders",
			inbox.Inject(func(cfg *Config, timing *Timing) inbox.Option {
				return inbox.Configure(func(o *inbox.Options) {
					*o = cfg.Inbox
					o.Middleware = append(o.Middleware, timing.Middleware)
				})
			}),
			inbox.Channel("orders.events",
				inbox.InjectChannel(func(cfg *Config, tls *tls.Config) inbox.ChannelOption {
					return inbox.Kafka(kafkaconsumer.Config{Brokers: cfg.Brokers, TLS: tls,
						Topics: []string{"orders.events"}, GroupID: "fulfilment"})
				}),
				inbox.On("order.placed", inbox.Tx("reserve-stock", reserveStock)),
			),
		),
		//page:end
		mounted(),
	)
}

// mounted serves the inbox on the application's *http.ServeMux.
func mounted() fx.Option {
	return fx.Options(
		//page:begin mount
		dashboardfx.Mount("orders", "/orders/inbox", func(o *dashboard.Options, s *Sessions) { o.Authorizer = s.Principal }),
		//page:end
	)
}

func reserveStock(_ context.Context, tx *gorm.DB, m handler.Message[OrderPlaced]) error {
	return tx.Create(&Reservation{OrderID: m.Payload.OrderID}).Error
}

//page:begin feature

// Invoicing is a feature: its handlers, and what only they need.
var Invoicing = fx.Module("invoicing",
	fx.Provide(fx.Annotate(NewInvoicer, fx.ParamTags(`name:"orders"`)), fx.Private),
	inbox.Extend("orders",
		inbox.Subscribe("orders.events", "order.placed", inbox.FromTx[*Invoicer]("invoice-order")),
		inbox.Channel("invoicing.reminders", inbox.On("reminder.due", inbox.Func("send-reminder", sendReminder))),
	),
)

//page:end

//page:begin own

// Invoicer accepts into the inbox that runs it.
type Invoicer struct{ inbox func() *inbox.Inbox }

func NewInvoicer(ib func() *inbox.Inbox) *Invoicer { return &Invoicer{ib} }

func (i *Invoicer) Handle(ctx context.Context, tx *gorm.DB, m handler.Message[OrderPlaced]) error {
	id := m.Payload.OrderID
	reminder, err := inbox.JSON("invoicing.reminders", "reminder.due", id, ReminderDue{id})
	if err != nil {
		return err
	}
	_, err = i.inbox().AcceptTx(ctx, tx, reminder) // committed with this handler's completion
	return err
}

//page:end

func sendReminder(context.Context, handler.Message[ReminderDue]) error { return nil }
