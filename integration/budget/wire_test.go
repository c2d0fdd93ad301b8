package budget

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// wire is a pool that counts what is sent to the server.
type wire struct {
	DB         *gorm.DB
	roundTrips atomic.Int64

	mu         sync.Mutex
	statements []string
}

// newWire opens a wire. With a tracer, the inbox does not bypass database/sql to use pgx directly.
// Without one, only round trips are counted.
func newWire(t *testing.T, dsn string, traced bool) *wire {
	t.Helper()
	w := &wire{}
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	if traced {
		config.Tracer = w
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &countedConn{Conn: conn, trips: &w.roundTrips}, nil
	}
	pool := stdlib.OpenDB(*config)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	w.DB, err = gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	return w
}

// reset sets the counters to zero.
func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statements = nil
	w.roundTrips.Store(0)
}

func (w *wire) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.statements...)
}

// TraceQueryStart implements pgx.QueryTracer.
func (w *wire) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statements = append(w.statements, data.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (w *wire) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// countedConn counts writes that follow a read. Each is one network round trip.
type countedConn struct {
	net.Conn
	trips   *atomic.Int64
	writing atomic.Bool
}

func (c *countedConn) Write(b []byte) (int, error) {
	if !c.writing.Swap(true) {
		c.trips.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.writing.Store(false)
	}
	return n, err
}
