package fxtest

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"

	"github.com/gorm-inbox/inbox"
)

// App starts an Fx application and stops it when the test ends. Usually it is the user's own, with a test database
// provided in place of its own (see OpenDB). An application that cannot start or stop fails the test. With Manual among
// the options nothing is processed in the background. Use gives the application's inboxes to the test.
func App(t testing.TB, opts ...fx.Option) *fxtest.App {
	t.Helper()
	app := fxtest.New(t, opts...)
	app.RequireStart()
	t.Cleanup(app.RequireStop)
	return app
}

// Manual turns off the background processing, the cleanup and the consumers of every inbox in an Fx application. The
// inboxes share one Clock, which is in the graph as *Clock. It starts at the current time and then stands still. The
// test runs handlers with a Kit's Process, or with Inbox.ProcessPending.
func Manual() fx.Option { return manual(NewClock(time.Now())) }

func manual(clock *Clock) fx.Option {
	return fx.Supply(clock, &inbox.Override{Manual: true, Clock: clock})
}

// Use is an option for App. It sets *kit to a Kit for the inbox that inbox.Module(name, …) made. The unnamed inbox has
// the name "".
func Use(t testing.TB, name string, kit **Kit) fx.Option {
	tag := ""
	if name != "" {
		tag = fmt.Sprintf("name:%q", name)
	}
	return fx.Invoke(fx.Annotate(func(ib *inbox.Inbox, clock *Clock) {
		*kit = &Kit{Inbox: ib, DB: ib.DB(), Clock: clock, t: t}
	}, fx.ParamTags(tag, `optional:"true"`)))
}
