package pooler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

var errFirst = errors.New("the first attempt fails")

// order records what an ordered handler gets.
type order struct {
	mu  sync.Mutex
	ids map[string][]string // by ordering key
}

func (o *order) note(key, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ids[key] = append(o.ids[key], id)
}

// everyKind declares a handler of each kind. The transactional ones write a row for each message to
// the table effects.
func everyKind(seen *order) inbox.Option {
	write := func(key string) func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
		return func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
			var idle string
			if err := tx.Raw("SELECT current_setting('tcp_keepalives_idle')").Scan(&idle).Error; err != nil || idle != "20" {
				return fmt.Errorf("the pooler's host is probed after %s s: %w", idle, err)
			}
			return tx.Exec("INSERT INTO effects (handler, message) VALUES (?, ?)", key, m.ID).Error
		}
	}
	return inboxtest.Handlers(
		inboxtest.Do("plain", func(_ context.Context, m inboxtest.Bytes) error {
			if m.Attempt == 1 && m.ID[len(m.ID)-1] == '7' {
				return handler.RetryAfter(10*time.Millisecond, errFirst)
			}
			return nil
		}),
		inboxtest.Tx("tx", write("tx")),
		inboxtest.Tx("grouped", write("grouped"), handler.TxGroup(4)),
		inboxtest.Do("ordered", func(_ context.Context, m inboxtest.Bytes) error {
			seen.note(string(m.OrderingKey), m.ID)
			return nil
		}, handler.Ordered()),
	)
}

// TestInboxWorksThroughTransactionPooler proves contract 3.7: no session state is
// assumed.
func TestInboxWorksThroughTransactionPooler(t *testing.T) {
	t.Parallel()
	// No mode of pgx knows how many connections the pooler has.
	for mode, size := range map[string]int{"exec": 2, "simple_protocol": 5, "cache_describe": 20} {
		t.Run(fmt.Sprintf("%s with %d connections", mode, size), func(t *testing.T) {
			t.Parallel()
			direct, through := pooled(t, size, nil)
			db := testenv.OpenPostgres(t, through+"&default_query_exec_mode="+mode)
			work(t, testenv.OpenPostgres(t, direct), db)
			requireNoSettings(t, db, size)
		})
	}
}

// requireNoSettings checks all sessions of the pooler at once: what a transaction has set for itself,
// such as its bounds (contract 3.8), must not reach the client that gets its session next.
func requireNoSettings(t *testing.T, db *gorm.DB, size int) {
	t.Helper()
	for range size {
		tx := db.Begin()
		require.NoError(t, tx.Error)
		defer tx.Rollback()
		var changed []string
		require.NoError(t, tx.Raw(`SELECT name FROM pg_settings WHERE source = 'session' AND (name LIKE 'tcp%'
			OR name IN ('idle_in_transaction_session_timeout', 'jit', 'default_transaction_isolation'))`).Scan(&changed).Error)
		require.Empty(t, changed)
	}
}

func work(t *testing.T, direct, db *gorm.DB) {
	const messages, keys = 200, 5
	inboxtest.Exec(t, direct, "CREATE TABLE effects (handler text NOT NULL, message text NOT NULL)")
	seen := &order{ids: map[string][]string{}}
	options := func(more ...inbox.Option) []inbox.Option {
		return append([]inbox.Option{inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetryDelay = 100 * time.Millisecond
			o.Cleanup.Retention = time.Millisecond
		}), everyKind(seen)}, more...)
	}
	ib := inboxtest.New(t, db, options()...)

	// Claims of a worker that has vanished are recovered.
	lost := make([]string, 8)
	for i := range lost {
		lost[i] = fmt.Sprintf("lost %d", i)
	}
	inboxtest.Accept(t, ib, lost...)
	st := inboxtest.Store(t, db)
	require.NoError(t, st.Heartbeat(t.Context(), store.Worker{ID: "0190a0a0-0000-7000-8000-000000000001",
		Host: "elsewhere", HandlerKeys: []string{"plain"}}, time.Now()))
	claimed, err := st.Claim(t.Context(), store.ClaimRequest{WorkerID: "0190a0a0-0000-7000-8000-000000000001",
		Now:    time.Now(),
		Limits: []store.KeyLimit{{HandlerKey: "plain", Limit: 100}}})
	require.NoError(t, err)
	require.Len(t, claimed.Claims, len(lost))
	inboxtest.Exec(t, direct, "UPDATE inbox_workers SET heartbeat_at = heartbeat_at - interval '1 hour'")

	inboxtest.Start(t, ib)
	for from := 0; from < messages; from += 40 {
		var batch []handler.RawMessage
		for i := range 40 {
			m := inboxtest.Message(fmt.Sprintf("m %03d", from+i))
			m.OrderingKey = fmt.Appendf(nil, "key %d", i%keys)
			batch = append(batch, m)
		}
		_, err := ib.Accept(t.Context(), batch...)
		require.NoError(t, err)
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error { // duplicates
			_, err := ib.AcceptTx(t.Context(), tx, batch[:3]...)
			return err
		}))
	}
	inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "everything is completed")
	require.Len(t, inboxtest.Statuses(t, ib), 4*(messages+len(lost)))
	var effects, distinct int64
	require.NoError(t, direct.Raw("SELECT count(*) FROM effects").Scan(&effects).Error)
	require.NoError(t,
		direct.Raw("SELECT count(*) FROM (SELECT DISTINCT handler, message FROM effects) AS d").Scan(&distinct).Error)
	require.EqualValues(t, 2*(messages+len(lost)), effects)
	require.Equal(t, effects, distinct, "exactly once")
	require.Len(t, seen.ids, keys+1, "lanes, and what has no ordering key")
	slices.Sort(seen.ids[""])
	require.Equal(t, lost, slices.Compact(seen.ids[""]))
	for i := range keys {
		var expected []string
		for n := i; n < messages; n += keys {
			expected = append(expected, fmt.Sprintf("m %03d", n))
		}
		key := fmt.Sprintf("key %d", i)
		// A message may run again before the next one: at least once.
		require.Equal(t, expected, slices.Compact(seen.ids[key]), "lane %q", key)
	}

	deleted, err := ib.Cleanup(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, messages+len(lost), deleted.Messages)

	exclusive(t, db)
}

// exclusive checks that only one of two workers processes at a time, and the other one after that
// stops.
func exclusive(t *testing.T, db *gorm.DB) {
	ran := make(chan string, 10)
	worker := func(name string) *inbox.Inbox {
		ib, err := inbox.New("other", db, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.WorkerTimeout = 15 * time.Second
			o.Processor.PollingInterval = 100 * time.Millisecond
			o.TablePrefix = "other_"
			o.Processor.Mode = processor.ModeExclusive
		}),
			inboxtest.Handlers(inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error { ran <- name; return nil })))
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		return ib
	}
	first := worker("first")
	inboxtest.Accept(t, first, "1")
	require.Equal(t, "first", inboxtest.Receive(t, ran, "the holder of the lock"))
	second := worker("second")
	inboxtest.Accept(t, second, "2")
	require.Equal(t, "first", inboxtest.Receive(t, ran, "the holder of the lock"))
	ctx, cancel := context.WithTimeout(t.Context(), inboxtest.Patience)
	defer cancel()
	require.NoError(t, first.Stop(ctx))
	inboxtest.Accept(t, second, "3")
	require.Equal(t, "second", inboxtest.Receive(t, ran, "its successor"))
	require.NoError(t, models.CheckSchema(ctx, db, models.Naming{Prefix: "other_"}, "other"))
}
