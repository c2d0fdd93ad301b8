package renaming

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// ran counts runs by order.
type ran struct {
	mu     sync.Mutex
	counts map[string]int
}

func newRan() *ran { return &ran{counts: map[string]int{}} }

func (r *ran) handle(_ context.Context, m handler.Message[OrderPlaced]) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[m.Payload.OrderID]++
	return nil
}

// deployed is a program that is not started: what it has stored and what is due
// is looked at by hand.
func deployed(t *testing.T, db *gorm.DB, opts ...inbox.Option) *inbox.Inbox {
	t.Helper()
	ib, err := inbox.New("shop", db, opts...)
	require.NoError(t, err)
	require.NoError(t, ib.Migrate(t.Context()))
	return ib
}

func accept(t *testing.T, ib *inbox.Inbox, orders ...string) {
	t.Helper()
	for _, id := range orders {
		_, err := ib.Accept(t.Context(), fxtest.JSON("orders.events", "order.placed", id, OrderPlaced{OrderID: id}))
		require.NoError(t, err)
	}
}

func TestLimitedHandlerRunsAll(t *testing.T) {
	for _, limit := range []func(fulfil) inbox.Option{limited, fair} {
		partner := newRan()
		ib := deployed(t, testenv.SQLite(t), limit(partner.handle))
		accept(t, ib, "o-1")
		process(t, ib)
		require.Equal(t, map[string]int{"o-1": 1}, partner.counts)
	}
}

func process(t *testing.T, ib *inbox.Inbox) {
	t.Helper()
	_, err := ib.ProcessPending(t.Context())
	require.NoError(t, err)
}

// Contract 4.2, 11.1.
func TestAddedHandlerRunsEarlierMessages(t *testing.T) {
	db := testenv.SQLite(t)
	fulfilled, billed := newRan(), newRan()
	old := deployed(t, db, before(fulfilled.handle))
	began := time.Now().Add(-time.Minute)
	accept(t, old, "1", "2")
	now := deployed(t, db, added(fulfilled.handle, billed.handle))
	accept(t, now, "3")
	accept(t, old, "4")
	o, err := now.Ops()
	require.NoError(t, err)
	result, err := backfill(t.Context(), o, began)
	require.NoError(t, err)
	require.EqualValues(t, 3, result.Done)
	process(t, now)
	require.Equal(t, map[string]int{"1": 1, "2": 1, "3": 1, "4": 1}, billed.counts)
	require.Equal(t, billed.counts, fulfilled.counts)
}

// Contract 4.2.
func TestMessageStoredUnderAnOldKeyRunsOnce(t *testing.T) {
	for name, tc := range map[string]struct{ first, then func(fulfil) inbox.Option }{
		"renamed":           {before, after},
		"renamed again":     {after, twice},
		"before two":        {before, twice},
		"prepared":          {before, prepared},
		"back from the new": {after, prepared},
	} {
		t.Run(name, func(t *testing.T) {
			db := fxtest.OpenDB(t)
			runs := newRan()
			old, renamed := deployed(t, db, tc.first(runs.handle)), deployed(t, db, tc.then(runs.handle))
			accept(t, old, "1", "2")
			process(t, old)
			accept(t, old, "3")
			accept(t, renamed, "1", "3", "4") // 1 and 3 come again
			process(t, renamed)
			accept(t, old, "4") // as one that still runs may
			process(t, renamed)
			process(t, old)
			require.Equal(t, map[string]int{"1": 1, "2": 1, "3": 1, "4": 1}, runs.counts)
		})
	}
}

// Contract 5.7, 5.16.
func TestStartLogsAForgottenKey(t *testing.T) {
	db := fxtest.OpenDB(t)
	runs := newRan()
	accept(t, deployed(t, db, before(runs.handle)), "1")
	core, logs := observer.New(zap.WarnLevel)
	renamed := deployed(t, db, forgotten(runs.handle), inbox.Configure(func(o *inbox.Options) {
		o.Logger = zap.New(core)
	}))
	require.NoError(t, renamed.Start(t.Context()))
	defer func() { require.NoError(t, renamed.Stop(context.Background())) }()
	warnings := logs.FilterMessageSnippet("a renamed handler needs handler.LegacyKeys").All()
	require.Len(t, warnings, 1)
	require.Equal(t, "order-handler", warnings[0].ContextMap()["handler_key"])
}

// The page's question: is anything open under the old key?
func TestQueryFindsOpenStatusesOfAKey(t *testing.T) {
	query, err := os.ReadFile("open.sql")
	require.NoError(t, err)
	for name, db := range map[string]*gorm.DB{"SQLite": fxtest.OpenDB(t), "PostgreSQL": testenv.Postgres(t)} {
		t.Run(name, func(t *testing.T) {
			runs := newRan()
			ib := deployed(t, db, before(runs.handle))
			open := func() (n int) {
				require.NoError(t, db.Raw(string(query)).Scan(&n).Error)
				return n
			}
			require.Zero(t, open())
			accept(t, ib, "1", "2")
			require.Equal(t, 2, open())
			process(t, ib)
			require.Zero(t, open())
			require.NoError(t,
				db.Exec("UPDATE inbox_handler_statuses SET is_poisoned = true, completed_at = NULL WHERE message_id = '1'").Error)
			require.Equal(t, 1, open())
		})
	}
	require.Equal(t, 3, strings.Count(string(query), "'order-handler'"))
}

func TestRenamedChannelFindsItsStoredMessages(t *testing.T) {
	db := fxtest.OpenDB(t)
	runs := newRan()
	old := deployed(t, db, before(runs.handle))
	accept(t, old, "1")
	process(t, old)
	other := deployed(t, db, renamed(runs.handle))
	results, err := other.Accept(t.Context(), fxtest.JSON("orders.placed", "order.placed", "1", OrderPlaced{OrderID: "1"}))
	require.NoError(t, err)
	require.Equal(t, handler.OutcomeDuplicate, results[0].Outcome)
}
