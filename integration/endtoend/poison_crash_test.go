package endtoend

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
)

// TestMessageCrashingPostgresIsPoisonedAlone proves contract 5.7. The server process of the
// message's transaction is killed each time, so PostgreSQL ends all connections and recovers. Another message is
// in its transaction at each crash.
func TestMessageCrashingPostgresIsPoisonedAlone(t *testing.T) {
	t.Parallel()
	// A crash of processes needs no fsync, and with it the recovery takes seconds.
	server, err := servers.StartPostgres(servers.PostgresOptions{Settings: map[string]string{"fsync": "off"}})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	r := newRigOn(t, server)
	r.settings.WorkerTimeout = patience // the server recovers sooner
	const maxRetries = 2
	var crashes, beside atomic.Int64
	meet, over := make(chan struct{}), make(chan struct{})
	h := func(ctx context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
		if err := tx.Exec("INSERT INTO effects (message_id, attempt, pid) VALUES (?, ?, 0)", m.ID, m.Attempt).Error; err != nil {
			return err
		}
		switch m.ID {
		case "bad":
			var pid int
			if err := tx.Raw("SELECT pg_backend_pid()").Scan(&pid).Error; err != nil {
				return err
			}
			select {
			case <-meet:
			case <-ctx.Done():
				return ctx.Err()
			}
			crashes.Add(1)
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			return tx.Exec("SELECT pg_sleep(60)").Error
		case "beside":
			select {
			case meet <- struct{}{}:
				beside.Add(1)
				return tx.Exec("SELECT pg_sleep(60)").Error
			case <-over:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	other := func(_ context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
		return tx.Exec("INSERT INTO effects (message_id, attempt, pid) VALUES (?, ?, 1)", m.ID, m.Attempt).Error
	}
	options := append(r.settings.Options(workload.NewHandlers(r.db), zap.NewNop()),
		inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = maxRetries
			o.Processor.MaxRetryDelay = 4 * time.Second
		}),
		inbox.Channel("crash", inbox.On("t", inbox.Tx("h", h), inbox.Tx("other", other))))
	ib, err := inbox.New(workload.InboxName, openGORM(t, r.settings.DSN), options...)
	require.NoError(t, err)
	r.start(ib)
	desk, err := ib.Ops()
	require.NoError(t, err)
	accept := func(ids ...string) {
		messages := make([]handler.RawMessage, len(ids))
		for i, id := range ids {
			messages[i] = handler.RawMessage{Channel: "crash", Type: "t", ID: id}
		}
		r.accept(ib, messages...)
	}

	accept("bad", "beside")
	var failing *ops.Status
	accepted := 2
	r.await("the message is poisoned", func() bool {
		if accepted < 500 {
			accept(fmt.Sprint(accepted), fmt.Sprint(accepted+1), fmt.Sprint(accepted+2))
			accepted += 3
		}
		page, err := desk.List(t.Context(), ops.Filter{MessageID: "bad", HandlerKeys: []string{"h"},
			States: []ops.State{ops.StateFailing, ops.StatePoisoned}}, "", 10)
		if err != nil || len(page.Items) == 0 { // the server recovers, or the message runs
			return false
		}
		s := page.Items[0]
		if s.State != ops.StatePoisoned {
			failing = &s
		}
		return s.State == ops.StatePoisoned
	})
	close(over)
	r.await("nothing is pending", func() bool {
		return r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE completed_at IS NULL AND NOT is_poisoned`) == 0
	})

	const uncharged = 3 // the first in a row
	require.EqualValues(t, uncharged+maxRetries, crashes.Load())
	require.Equal(t, crashes.Load(), beside.Load(), "each of them was a crash of the whole server")
	require.Equal(t, 1, r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE message_id = 'bad' AND handler_key = 'h'
		AND is_poisoned AND error_count = $1 AND interrupted_count = $2`, maxRetries, uncharged+maxRetries))
	require.NotNil(t, failing, "operators see the message while it fails")
	require.Contains(t, failing.LastError, "the database failed in the handler transaction")
	require.Greater(t, accepted, 50, "others kept coming")
	require.Equal(t, 2*accepted-1, r.number(`SELECT count(*) FROM inbox_handler_statuses
		WHERE completed_at IS NOT NULL AND error_count + abandoned_count = 0`), "no other is charged")
	require.Equal(t, 2*accepted-1, r.number(`SELECT count(*) FROM effects WHERE attempt = 1`), "nothing lost or doubled")
	require.Equal(t, 2*accepted-1, r.number(`SELECT count(*) FROM (SELECT DISTINCT message_id, pid FROM effects) AS each`))
}
