package inbox_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
)

func reason(ib *inbox.Inbox, code string) *ops.HealthReason {
	reasons := ib.Health().Reasons
	if i := slices.IndexFunc(reasons, func(r ops.HealthReason) bool { return r.Code == code }); i >= 0 {
		return &reasons[i]
	}
	return nil
}

// late is an application's clock that is behind the machine's.
type late time.Duration

func (by late) Now() time.Time { return clock.System{}.Now().Add(-time.Duration(by)) }

// notSet is a clock whose maker forgot to set it.
type notSet struct{}

func (notSet) Now() time.Time { return time.Time{} }

// TestClockFarFromTheMachinesIsLoggedAtStart proves contract 3.5: option Clock is for tests.
func TestClockFarFromTheMachinesIsLoggedAtStart(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		for name, c := range map[string]struct {
			clock inbox.Clock
			lines int
		}{"none": {nil, 0}, "right": {late(0), 0}, "two hours late": {late(2 * time.Hour), 1}, "not set": {notSet{}, 1}} {
			log, logs := inboxtest.Observe()
			ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), log, inbox.Configure(func(o *inbox.Options) { o.Clock = c.clock }),
				inboxtest.Handlers(nothing("h")))
			stop := inboxtest.Start(t, ib)
			require.Equal(t, c.lines, logs.FilterMessageSnippet("option Clock is far from this machine's clock").Len(), name)
			stop()
		}
	})
}

// Contract 11.5. SQLite has no clock of its own.
func TestWrongClockDegradesWorkerAndIsLoggedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		by     time.Duration
		detail string
	}{"ahead": {2 * time.Hour, "2h ahead of the database's"},
		"behind": {-2 * time.Hour, "2h behind the database's"}} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				log, logs := inboxtest.Observe()
				ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), log, inbox.Configure(func(o *inbox.Options) {
					o.Clock = clock.Offset(c.by)
				}),
					inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
				right := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
				inboxtest.Start(t, right)
				inboxtest.Start(t, ib)
				inboxtest.Eventually(t, func() bool { return reason(ib, health.ClockSkew) != nil }, "health says so")
				its := reason(ib, health.ClockSkew)
				require.Contains(t, its.Detail, c.detail)
				require.Equal(t, inbox.HealthDegraded, its.State)
				require.ErrorContains(t, ib.Health().Degraded(), c.detail)
				require.Equal(t, 1, logs.FilterMessageSnippet("clock is not the database's").Len())
				require.Nil(t, reason(right, health.ClockSkew))
			})
		})
	}
}

// Contract 11.5.
func TestDifferingHandlersAreReportedAfterADeploy(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const said = "another program processes this inbox with other handlers"
		start := func(grace time.Duration, log inbox.Option, keys ...string) {
			var handlers []*inbox.HandlerSpec
			for _, key := range keys {
				handlers = append(handlers, inboxtest.Do(key, inboxtest.Nothing))
			}
			inboxtest.Start(t, inboxtest.New(t, d.Another(t), inboxtest.Brisk(), log, inbox.Configure(func(o *inbox.Options) {
				o.Processor.UnknownKeyGrace = grace
			}),
				inboxtest.Handlers(handlers...)))
		}
		log, logs := inboxtest.Observe()
		deploying, quiet := inboxtest.Observe()
		start(time.Hour, deploying, "mail", "stock")
		start(0, log, "mail", "bill")
		inboxtest.Eventually(t, func() bool { return logs.FilterMessageSnippet(said).Len() > 0 }, "it is said")
		line := logs.FilterMessageSnippet(said).All()[0]
		require.Equal(t, []any{"stock"}, line.ContextMap()["handler_keys"])
		require.Equal(t, []any{"bill"}, line.ContextMap()["missing"])
		last := lastHeartbeat(t, d)
		inboxtest.Eventually(t, func() bool {
			return lastHeartbeat(t, d).Sub(last) > 500*time.Millisecond
		}, "some sweeps pass")
		require.Equal(t, 1, logs.FilterMessageSnippet(said).Len())
		require.Zero(t, quiet.FilterMessageSnippet(said).Len(), "a deploy may be under way")
	})
}

// Contract 11.5: the processes of the deploy that adds a handler say so, and no later one does.
func TestDeployLogsTheHandlersItAdds(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const said = "handlers are new"
		began := int64(0)
		start := func(handlers ...*inbox.HandlerSpec) *observer.ObservedLogs {
			log, logs := inboxtest.Observe()
			inboxtest.Start(t, inboxtest.New(t, d.Another(t), inboxtest.Brisk(), log, inboxtest.Handlers(handlers...)))
			began++
			inboxtest.Eventually(t, func() bool {
				var rows int64
				require.NoError(t, d.DB.Table("inbox_workers").Count(&rows).Error)
				return rows >= began // a slow worker may come back under another ID
			}, "its row")
			return logs
		}
		swept := func() {
			last := lastHeartbeat(t, d)
			inboxtest.Eventually(t, func() bool { return lastHeartbeat(t, d).Sub(last) > 500*time.Millisecond }, "sweeps pass")
		}
		do := func(key string, opts ...handler.Option) *inbox.HandlerSpec {
			return inboxtest.Do(key, inboxtest.Nothing, opts...)
		}
		first := start(do("mail"))
		swept()
		require.Zero(t, first.FilterMessageSnippet(said).Len(), "nothing is new in the first program")
		one := start(do("mail"), do("bill"), do("letter", handler.LegacyKeys("mailing")))
		two := start(do("mail"), do("bill"), do("letter", handler.LegacyKeys("mailing")))
		renamed := start(do("post", handler.LegacyKeys("mail")))
		for _, logs := range []*observer.ObservedLogs{one, two} {
			inboxtest.Eventually(t, func() bool { return logs.FilterMessageSnippet(said).Len() > 0 }, "it is said")
		}
		swept()
		for _, logs := range []*observer.ObservedLogs{one, two} {
			lines := logs.FilterMessageSnippet(said).All()
			require.Len(t, lines, 1)
			require.Equal(t, []any{"bill", "letter"}, lines[0].ContextMap()["handler_keys"])
			require.Contains(t, lines[0].ContextMap(), "since")
		}
		require.Zero(t, renamed.FilterMessageSnippet(said).Len(), "a renamed handler is known by its old key")
		require.NoError(t, d.DB.Exec(`UPDATE inbox_workers SET started_at = ?`, time.Now().UTC().Add(-time.Hour)).Error)
		require.NoError(t, d.DB.Exec(`UPDATE inbox_workers SET started_at = ? WHERE handler_keys = '{"mail":"c"}'`,
			time.Now().UTC().Add(-2*time.Hour)).Error)
		later := start(do("mail"), do("bill"), do("letter", handler.LegacyKeys("mailing")))
		swept()
		require.Zero(t, later.FilterMessageSnippet(said).Len(), "the deploy is long over")
	})
}

func lastHeartbeat(t *testing.T, d *inboxtest.Database) (last time.Time) {
	t.Helper()
	var beats []time.Time
	require.NoError(t, d.DB.Table("inbox_workers").Order("heartbeat_at DESC").Limit(1).Pluck("heartbeat_at", &beats).Error)
	require.NotEmpty(t, beats)
	return beats[0]
}

// Contract 11.5: a restart is the remedy.
func TestClosedPoolIsUnhealthyAndNotLive(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		db := d.Another(t)
		ib := inboxtest.New(t, db, inboxtest.Brisk(), log, inbox.Configure(func(o *inbox.Options) {
			o.SampleInterval = 10 * time.Millisecond
		}),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Eventually(t, func() bool { return !ib.Health().SampledAt.IsZero() }, "it runs")
		require.True(t, ib.Health().Live())
		pool, err := db.DB()
		require.NoError(t, err)
		require.NoError(t, pool.Close())
		inboxtest.Eventually(t, func() bool { return logs.FilterMessageSnippet("pool is closed").Len() > 0 }, "it is noticed")
		inboxtest.Eventually(t, func() bool { return reason(ib, health.ClosedPool) != nil }, "health says so")
		h := ib.Health()
		require.Equal(t, inbox.HealthUnhealthy, h.State)
		require.False(t, h.Live())
		require.False(t, h.Ready())
		lines := logs.FilterMessageSnippet("pool is closed").FilterLevelExact(zap.ErrorLevel)
		require.Equal(t, 1, lines.Len())
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = ib.Stop(ctx) // it cannot say goodbye
	})
}

// The text of an error may quote how something was connected to. The worker's row
// is read by more people than that.
func TestHealthReasonsHoldNoPasswords(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const text = "cannot connect to postgres://app:hunter2@elsewhere/orders"
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1")
		switch d.Dialect {
		case "mysql":
			inboxtest.Exec(t, d.DB, "CREATE TRIGGER refuse BEFORE UPDATE ON inbox_handler_statuses FOR EACH ROW "+
				"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '"+text+"'")
		case "postgres":
			inboxtest.Exec(t, d.DB, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '"+
				text+"'; END $$")
			inboxtest.Exec(t, d.DB,
				"CREATE TRIGGER refuse BEFORE UPDATE ON inbox_handler_statuses FOR EACH ROW EXECUTE FUNCTION refuse()")
		default:
			inboxtest.Exec(t, d.DB, "CREATE TRIGGER refuse BEFORE UPDATE ON inbox_handler_statuses BEGIN SELECT RAISE(ABORT, '"+
				text+"'); END")
		}
		inboxtest.Start(t, ib)
		var stored string
		inboxtest.Eventually(t, func() bool {
			require.NoError(t, d.DB.Raw("SELECT health FROM inbox_workers").Scan(&stored).Error)
			return strings.Contains(stored, "cannot connect")
		}, "the worker's row says so")
		require.Contains(t, stored, "postgres://app:xxxxx@elsewhere/orders")
		require.NotContains(t, stored, "hunter2")
		require.NotContains(t, reason(ib, health.Database).Detail, "hunter2")
		require.NotContains(t, ib.Health().Degraded().Error(), "hunter2")
	})
}

// Contract 5.9, 11.5: without the grants, claims of a frozen worker would stay locked.
func TestWorkerLogsThatItCannotEndSessionsOfAnotherRole(t *testing.T) {
	dsn := testenv.PostgresDSN(t)
	work := func(db *gorm.DB, opts ...inbox.Option) *inbox.Inbox {
		return inboxtest.New(t, db, append(opts, inboxtest.Brisk(),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))...)
	}
	work(testenv.OpenPostgres(t, dsn))
	old, asOld := inboxtest.ApplicationRole(t, dsn)
	rotated, asRotated := inboxtest.ApplicationRole(t, dsn)
	log, logs := inboxtest.Observe()
	first, second := work(testenv.OpenPostgres(t, asOld)), work(testenv.OpenPostgres(t, asRotated), log)
	inboxtest.Start(t, first)
	inboxtest.Start(t, second)
	inboxtest.Eventually(t, func() bool { return reason(second, health.BarredRole) != nil }, "health says so")
	its := reason(second, health.BarredRole)
	require.Equal(t, inbox.HealthDegraded, its.State)
	require.Contains(t, its.Detail, "the database role "+old+",")
	require.Contains(t, its.Detail, "GRANT pg_read_all_stats, pg_signal_backend TO "+rotated)
	require.ErrorContains(t, second.Health().Degraded(), its.Detail)
	require.True(t, second.Health().Ready())
	inboxtest.Eventually(t, func() bool {
		return reason(first, health.BarredRole) != nil
	}, "the other has the same to say")

	testenv.Grant(t, dsn, "pg_read_all_stats, pg_signal_backend", rotated)
	inboxtest.Eventually(t, func() bool { return reason(second, health.BarredRole) == nil }, "it can now")
	testenv.Grant(t, dsn, rotated, old)
	inboxtest.Eventually(t, func() bool { return reason(first, health.BarredRole) == nil }, "a member can, too")
	require.Equal(t, 1, logs.FilterMessageSnippet("can neither see nor end").Len())
}
