package exclusive

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// Contract 5.3, 5.14.
func TestOneWorkerProcessesAndAnotherTakesOver(t *testing.T) {
	dsn := testenv.PostgresDSN(t)
	ran := make(chan int, 10)
	started := func(worker int) *inbox.Inbox {
		handle := func(context.Context, handler.Message[OrderPlaced]) error { ran <- worker; return nil }
		db := testenv.OpenPostgres(t, dsn)
		ib, err := inbox.New("shop", db, append(options(handle), inbox.Configure(func(o *inbox.Options) {
			o.Migrate = true
			o.Processor.HeartbeatInterval = 100 * time.Millisecond
			o.Processor.WorkerTimeout = 9 * time.Second
			o.Processor.PollingInterval = 100 * time.Millisecond
		}))...)
		require.NoError(t, err)
		require.NoError(t, ib.Start(t.Context()))
		return ib
	}
	first := started(1)
	defer func() { require.NoError(t, first.Stop(context.Background())) }()
	accept := func(id string) {
		_, err := first.Accept(t.Context(), fxtest.JSON("orders.events", "order.placed", id, OrderPlaced{id}))
		require.NoError(t, err)
	}
	accept("o-1")
	require.Equal(t, 1, <-ran)
	second := started(2)
	defer func() { require.NoError(t, second.Stop(context.Background())) }()
	require.NoError(t, second.Health().Degraded(), "standing by is healthy")

	db := testenv.OpenPostgres(t, dsn)
	holder, err := os.ReadFile("holder.sql")
	require.NoError(t, err)
	var lease struct{ Host string }
	require.NoError(t, db.Raw(string(holder)).Scan(&lease).Error)
	require.NotEmpty(t, lease.Host)

	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	drained, err := byHand(short, second)
	require.NoError(t, err)
	require.Zero(t, drained)
	require.NoError(t, first.Stop(t.Context()))
	accept("o-2")
	require.Equal(t, 2, <-ran)
}
