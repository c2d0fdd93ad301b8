package fxtest

import (
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	_ "modernc.org/sqlite" // the "sqlite" driver, in pure Go

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/sqlitefile"
	"github.com/gorm-inbox/inbox/outgoing"
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

	t    testing.TB
	left *published // nil for an application without Manual
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

// Manual turns off the background processing, the cleanup and the consumers of every inbox in an Fx application, and
// what leaves to Kafka: RequirePublished sees it. The inboxes share one Clock, which is in the graph as *Clock. It
// starts at the current time and then stands still. The test runs handlers with a Kit's Process, or with
// Inbox.ProcessPending.
func Manual() fx.Option { return manual(NewClock(time.Now())) }

func manual(clock *Clock) fx.Option {
	left := &published{byInbox: map[string][]outgoing.Message{}}
	return fx.Supply(clock, left, &inbox.Override{Manual: true, Clock: clock, Published: left.add})
}

// Use is an option for App. It sets *kit to a Kit for the inbox that inbox.Module(name, …) made. The unnamed inbox has
// the name "".
func Use(t testing.TB, name string, kit **Kit) fx.Option {
	tag := ""
	if name != "" {
		tag = fmt.Sprintf("name:%q", name)
	}
	return fx.Invoke(fx.Annotate(func(ib *inbox.Inbox, clock *Clock, left *published) {
		*kit = &Kit{Inbox: ib, DB: ib.DB(), Clock: clock, t: t, left: left}
	}, fx.ParamTags(tag, `optional:"true"`, `optional:"true"`)))
}

// sqliteParameters use a WAL file as in production. Only synchronous is off: a test's database need not survive a power
// failure, and waiting for the disk is slow.
const sqliteParameters = "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)" +
	"&_pragma=synchronous(OFF)&_pragma=foreign_keys(1)&_txlock=immediate"

// poolSize is larger than what an inbox with default options needs.
const poolSize = 20

// OpenDB returns a session on a new, empty SQLite file in a temporary directory of the test. It needs no server and no
// C compiler. It is closed when the test ends. Provide it in place of an application's production database. App, Manual
// and Use work the same with a session on PostgreSQL, MySQL or MariaDB that the test provides itself.
func OpenDB(t testing.TB) *gorm.DB {
	t.Helper()
	file := filepath.Join(t.TempDir(), "inbox.db")
	if err := sqlitefile.Create(file); err != nil {
		t.Fatalf("fxtest: %v", err)
	}
	// Escape the path: it contains the test's name, in which # or ? would end it.
	path := url.URL{Path: filepath.ToSlash(file)}
	dsn := "file:" + path.EscapedPath() + sqliteParameters
	db, err := gorm.Open(sqlite.Dialector{DriverName: "sqlite", DSN: dsn}, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatalf("fxtest: open SQLite: %v", err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatalf("fxtest: open SQLite: %v", err)
	}
	pool.SetMaxOpenConns(poolSize)
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Errorf("fxtest: close SQLite: %v", err)
		}
	})
	return db
}

// Clock is a clock that stands still until the test moves it. It is an inbox.Clock and safe for concurrent use.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that stands at the given time, in UTC and truncated to the microseconds that databases
// store.
func NewClock(at time.Time) *Clock {
	c := &Clock{}
	c.Set(at)
	return c
}

// Now returns the time the clock stands at.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock by d; a negative d moves it back.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d).Truncate(time.Microsecond)
}

// Set moves the clock to a time.
func (c *Clock) Set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = at.UTC().Truncate(time.Microsecond)
}
