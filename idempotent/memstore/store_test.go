package memstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/idempotent/idempotenttest"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, opts ...func(*memstore.Options)) *memstore.Store {
	t.Helper()
	s, err := memstore.New(opts...)
	require.NoError(t, err)
	return s
}

func TestConformance(t *testing.T) {
	t.Run("by the system's clock", func(t *testing.T) {
		idempotenttest.Run(t, func(t *testing.T) idempotenttest.Fixture {
			return idempotenttest.Fixture{Store: open(t), Waits: 10 * time.Second}
		})
	})
	t.Run("by a clock that stands still, without waiting", func(t *testing.T) {
		idempotenttest.Run(t, func(t *testing.T) idempotenttest.Fixture {
			clock := fxtest.NewClock(time.Date(2020, 2, 29, 12, 0, 0, 0, time.UTC))
			return idempotenttest.Fixture{Store: open(t, func(o *memstore.Options) {
				o.Clock = clock
				o.WaitTimeout = 0
			}), Now: clock.Now,
				Advance: clock.Advance}
		})
	})
}
