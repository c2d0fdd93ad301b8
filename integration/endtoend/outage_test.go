package endtoend

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// count counts runs in memory, so it works while the database is down.
type count struct {
	mu   sync.Mutex
	runs map[string]int
}

func (c *count) run(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs[id]++
}

func (c *count) all() (messages, runs int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.runs {
		runs += n
	}
	return len(c.runs), runs
}

// TestOutageLongerThanWorkerTimeoutChargesNothing proves contract 2, 5.9 and 5.15: when
// the database is down for longer than WorkerTimeout, the worker stops its handlers, logs that
// once, charges nothing to handlers that do not need the database, and resumes.
func TestOutageLongerThanWorkerTimeoutChargesNothing(t *testing.T) {
	t.Parallel()
	server := disturbedPostgres(t)
	for _, outage := range []struct {
		name       string
		begin, end func() error
	}{
		{"frozen", server.Freeze, server.Thaw},
		{"stopped", server.Stop, server.Start},
	} {
		t.Run(outage.name, func(t *testing.T) {
			t.Cleanup(func() { require.NoError(t, server.Start()) })
			t.Cleanup(func() { require.NoError(t, server.Thaw()) })
			r := newRigOn(t, server)
			r.settings.SweepInterval = time.Second
			const messages = 400
			plain := &count{runs: map[string]int{}}
			core, logs := observer.New(zapcore.WarnLevel)
			h := workload.NewHandlers(r.db)
			options := append(r.settings.Options(h, zap.New(core)), inbox.Channel("outage", inbox.On("t",
				inbox.Tx("tx", func(_ context.Context, tx *gorm.DB, m handler.Message[workload.Job]) error {
					return tx.Exec("INSERT INTO effects (message_id, attempt, pid) VALUES (?, ?, 0)", m.ID, m.Attempt).Error
				}),
				inbox.Func("plain", func(ctx context.Context, m handler.Message[workload.Job]) error {
					plain.run(m.ID)
					select {
					case <-time.After(50 * time.Millisecond):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}))))
			ib, err := inbox.New(workload.InboxName, openGORM(t, r.settings.DSN), options...)
			require.NoError(t, err)
			require.NoError(t, ib.Start(t.Context()))
			stopped := false
			defer func() {
				if !stopped {
					_ = ib.Stop(context.Background())
				}
			}()
			accepted := make([]handler.RawMessage, messages)
			for i := range accepted {
				accepted[i] = handler.RawMessage{Channel: "outage", Type: "t", ID: fmt.Sprint(i), Content: []byte("{}")}
			}
			_, err = ib.Accept(t.Context(), accepted...)
			require.NoError(t, err)
			r.await("work is under way", func() bool { n, _ := plain.all(); return n > 20 })

			require.NoError(t, outage.begin())
			r.await("health is degraded", func() bool { return ib.Health().Degraded() != nil })
			pause(t.Context(), 3*r.settings.WorkerTimeout)
			before, _ := plain.all()
			require.Less(t, before, messages, "claiming has ended")
			require.Error(t, ib.Health().Degraded())
			require.NoError(t, outage.end())

			r.await("everything completes", func() bool {
				return r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE completed_at IS NOT NULL`) == 2*messages
			})
			r.await("health recovers", func() bool { return ib.Health().Degraded() == nil })
			require.NoError(t, ib.Stop(t.Context()))
			stopped = true
			require.Equal(t, messages, r.number(`SELECT count(*) FROM effects`), "nothing lost")
			require.Equal(t, messages, r.number(`SELECT count(DISTINCT message_id) FROM effects`), "nothing doubled")
			require.Zero(t, r.number(`SELECT count(*) FROM inbox_handler_statuses WHERE error_count > 0`), "nothing charged")
			_, runs := plain.all()
			t.Logf("%d plain runs of %d messages, counters %+v", runs, messages, ib.Counters())
			require.Zero(t, ib.Counters().Fenced, "what has run is stored before its claims are released")
			require.LessOrEqual(t, runs-messages, r.settings.Concurrency, "only what was interrupted runs again")
			lines, failed := map[string]int{}, map[string]int{}
			for _, entry := range logs.All() {
				lines[entry.Message]++
				if name, found := entry.ContextMap()["condition"].(string); found && entry.Level > zap.InfoLevel {
					failed[name]++
				}
			}
			t.Log(lines)
			for _, name := range []string{"heartbeat", "claiming", "storing results", "recovery"} {
				// Once for the outage, with some tolerance for a busy machine. A line for each
				// failed heartbeat would make fifteen.
				require.LessOrEqual(t, failed[name], 5, name)
			}
		})
	}
}
