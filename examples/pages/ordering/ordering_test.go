package ordering

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
)

// log notes which messages ran, and fails those of the set.
type log struct {
	mu     sync.Mutex
	ran    []string
	failed map[string]bool
}

func (l *log) handle(_ context.Context, m handler.Message[AccountChanged]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ran = append(l.ran, m.ID)
	if l.failed[m.ID] {
		return errors.New("refused")
	}
	return nil
}

func nothing(context.Context, handler.Message[AccountChanged]) error { return nil }

func message(id, key string) handler.RawMessage {
	m := fxtest.JSON("accounts.events", "account.changed", id, AccountChanged{})
	if key != "" {
		m.OrderingKey = []byte(key)
	}
	return m
}

// Contract 5.12.
func TestFailureBlocksOnlyItsLane(t *testing.T) {
	l := &log{failed: map[string]bool{"a1": true}}
	kit := fxtest.New(t, byKafkaKey(l.handle, nothing), inbox.Configure(func(o *inbox.Options) {
		o.Processor.Concurrency = 1
	}))
	kit.Accept(message("a1", "a"), message("a2", "a"), message("b1", "b"), message("n", ""))
	kit.Process()
	kit.RequireFailed("a1", "apply-change")
	kit.RequirePending("a2", "apply-change")
	kit.RequireCompleted("b1", "apply-change")
	kit.RequireCompleted("n", "apply-change")
	for _, id := range []string{"a1", "a2", "b1", "n"} {
		kit.RequireCompleted(id, "notify-owner")
	}
	l.failed = nil
	kit.Advance(time.Minute)
	kit.Process()
	kit.RequireCompleted("a1", "apply-change")
	kit.RequireCompleted("a2", "apply-change")
	require.Equal(t, []string{"a1", "a2"}, l.ran[len(l.ran)-2:])
}

func TestPoisonedHeadParksItsLaneUnlessSkipped(t *testing.T) {
	for name, tc := range map[string]struct {
		declared func(handle) inbox.Option
		goesOn   bool
	}{
		"parked":  {func(apply handle) inbox.Option { return byKafkaKey(apply, nothing) }, false},
		"skipped": {skipping, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &log{failed: map[string]bool{"a1": true}}
			kit := fxtest.New(t, tc.declared(l.handle), inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 1 }))
			kit.Accept(message("a1", "a"), message("a2", "a"))
			kit.Process()
			kit.RequirePoisoned("a1", "apply-change")
			if tc.goesOn {
				kit.RequireCompleted("a2", "apply-change")
			} else {
				kit.RequirePending("a2", "apply-change")
			}
		})
	}
}

func TestFunctionSetsTheLane(t *testing.T) {
	l := &log{failed: map[string]bool{"1": true}}
	kit := fxtest.New(t, bySource(l.handle))
	of := func(id, tenant string) handler.RawMessage {
		m := message(id, "the same for all")
		m.Properties.Headers = []handler.Header{{Key: "tenant", Value: []byte(tenant)}}
		return m
	}
	kit.Accept(of("1", "x"), of("2", "x"), of("3", "y"))
	kit.Process()
	kit.RequirePending("2", "apply-change")
	kit.RequireCompleted("3", "apply-change")
}

func TestOrderingKeyCanBeComputedFromTheRecord(t *testing.T) {
	l := &log{}
	_, err := inbox.New("accounts", fxtest.OpenDB(t), inbox.Channel("accounts.events", keyed([]string{"localhost:9092"}),
		inbox.On("account.changed", inbox.Func("apply-change", l.handle, handler.Ordered()))))
	require.NoError(t, err)
}
