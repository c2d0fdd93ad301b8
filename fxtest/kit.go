package fxtest

import (
	"testing"
	"time"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
)

// Start is the initial time of a Kit's clock.
var Start = time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)

// Kit is one inbox under test. Its methods end the test when a requirement is not met, so call them from the test's own
// goroutine.
type Kit struct {
	Inbox *inbox.Inbox
	// DB is the inbox's database.
	DB *gorm.DB
	// Clock is the inbox's clock. It is nil for an application without Manual.
	Clock *Clock

	t testing.TB
}

// New makes an inbox for one test. It uses a temporary SQLite file and inbox.Module, runs nothing in the background,
// and has a Clock that stands at Start. Everything is removed when the test ends. The options are those of
// inbox.Module: channels, MaxRetries and so on. Warnings and errors go to the test's log, which the option Logger
// changes.
//
// Handlers declared with inbox.From need values from an Fx graph: use NewWithFx.
func New(t testing.TB, opts ...inbox.Option) *Kit {
	t.Helper()
	return NewWithFx(t, fx.Options(), opts...)
}

// NewWithFx is like New, with more for the Fx graph: the constructors of handlers that inbox.From declares, and what
// they need. Combine several with fx.Options. The kit's database is in the graph as the unnamed *gorm.DB, its clock as
// *Clock.
func NewWithFx(t testing.TB, more fx.Option, opts ...inbox.Option) *Kit {
	t.Helper()
	opts = append([]inbox.Option{inbox.Configure(func(o *inbox.Options) {
		o.Migrate = true
		o.Logger = zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))
	})}, opts...)
	var kit *Kit
	App(t, fx.NopLogger, fx.Supply(OpenDB(t)), inbox.Module("", opts...), manual(NewClock(Start)), Use(t, "", &kit), more)
	return kit
}
