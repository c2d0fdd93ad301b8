package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/store"
)

// leaseTable has leases as package storetest requires them of each database. With fail set, the response of the next
// statement is lost, before or after it took effect.
type leaseTable struct {
	store.Store
	now         time.Time
	leases      map[string]leaseRow
	fail, after bool
}

type leaseRow struct {
	owner   string
	expires time.Time
}

var errLostResponse = errors.New("connection reset")

func (l *leaseTable) answer(takeEffect func()) error {
	failed := l.fail
	l.fail = false
	if !failed || l.after {
		takeEffect()
	}
	if failed {
		return errLostResponse
	}
	return nil
}

func (l *leaseTable) AcquireLease(_ context.Context, name, owner string, ttl time.Duration, _ time.Time) (bool, error) {
	held := false
	err := l.answer(func() {
		if row, found := l.leases[name]; !found || row.owner == owner || !row.expires.After(l.now) {
			l.leases[name], held = leaseRow{owner, l.now.Add(ttl)}, true
		}
	})
	return held && err == nil, err
}

func (l *leaseTable) LeaseOwner(_ context.Context, name string) (owner string, err error) {
	err = l.answer(func() { owner = l.leases[name].owner })
	return owner, err
}

func (l *leaseTable) ReleaseLease(_ context.Context, name, owner string) error {
	return l.answer(func() {
		if l.leases[name].owner == owner {
			delete(l.leases, name)
		}
	})
}

// modelWorker is a worker of the model: its session ends WorkerTimeout after its last heartbeat, by its own clock.
type modelWorker struct {
	*allotments
	beatAt time.Time
	calls  int
}

func (w *modelWorker) limit() *fleetLimit {
	for _, l := range w.limits {
		return l
	}
	return nil
}

type limitModel struct {
	*leaseTable
	handler *handler.Handler
	shared  *shared
	workers []*modelWorker
	started int
	passed  time.Time // by the workers' clocks, which do not jump
}

func newLimitModel(t require.TestingT, opts ...handler.Option) *limitModel {
	h := handler.New("h", func(context.Context, handler.Message[[]byte]) error { return nil }, opts...)
	require.NoError(t, h.Err())
	handlers, err := registry.New([]registry.Subscription{{Channel: "c", Type: "t", Handler: h}})
	require.NoError(t, err)
	m := &limitModel{leaseTable: &leaseTable{now: time.Unix(0, 0), leases: map[string]leaseRow{}}, handler: h}
	m.shared = &shared{log: zap.NewNop(), opts: DefaultOptions(), store: m.leaseTable, registry: handlers,
		wakeup: newWakeup(), clock: clock.NewDatabase(clock.System{})}
	m.shared.opts.Mode = ModeCompeting
	return m
}

func (m *limitModel) start() {
	m.started++
	w := &modelWorker{beatAt: m.passed}
	w.allotments = m.shared.newAllotments(fmt.Sprint(m.started), m.shared.opts.WorkerTimeout,
		func(*handler.Handler) int { return w.calls })
	m.workers = append(m.workers, w)
}

// endSessions ends the sessions without a heartbeat: their calls are cancelled.
func (m *limitModel) endSessions() {
	m.workers = slices.DeleteFunc(m.workers, func(w *modelWorker) bool {
		return m.passed.Sub(w.beatAt) >= m.shared.opts.WorkerTimeout
	})
}

// rows are the rows of all workers, of which some seem to be silent.
func (m *limitModel) rows(silent func() bool) (rows []store.WorkerState) {
	for _, w := range m.workers {
		row := store.WorkerState{Worker: store.Worker{ID: w.owner, HandlerKeys: []string{"h"}}}
		if silent() {
			row.SilentFor = m.shared.opts.WorkerTimeout
		}
		rows = append(rows, row)
	}
	return rows
}

func no() bool { return false }

// none is what a worker knows of dead ones: those of the model have no row.
func none(string) bool { return false }

// pass lets time pass by all clocks.
func (m *limitModel) pass(d time.Duration) { m.now, m.passed = m.now.Add(d), m.passed.Add(d) }

// TestCallsOfAllWorkersNeverExceedTheLimit proves contract 5.18: whatever workers see of each other, and whichever of
// them die, freeze or lose the responses of their statements.
func TestCallsOfAllWorkersNeverExceedTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 70).Draw(t, "limit")
		m := newLimitModel(t, handler.FleetConcurrency(limit))
		some := func(t *rapid.T) *modelWorker {
			if len(m.workers) == 0 {
				t.Skip("no worker")
			}
			return rapid.SampledFrom(m.workers).Draw(t, "worker")
		}
		expected := func(t *rapid.T, err error) {
			if err != nil {
				require.ErrorIs(t, err, errLostResponse)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				if len(m.workers) == 5 {
					t.Skip("enough workers")
				}
				m.start()
			},
			"heartbeat": func(t *rapid.T) {
				w := some(t)
				if err := w.renew(context.Background()); err == nil {
					w.beatAt = m.passed
				} else {
					expected(t, err)
				}
			},
			"sweep": func(t *rapid.T) {
				w := some(t)
				rows := m.rows(func() bool { return rapid.IntRange(0, 3).Draw(t, "silent") == 0 })
				expected(t, w.adjust(context.Background(), rows, none))
			},
			"begin a call": func(t *rapid.T) {
				if w := some(t); w.calls < int(w.limit().usable.Load()) {
					w.calls++
				}
			},
			"end a call": func(t *rapid.T) {
				w := some(t)
				w.calls = max(w.calls-1, 0)
			},
			"time passes": func(t *rapid.T) {
				m.pass(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second)
				m.endSessions()
			},
			"the database's clock jumps": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(-100, 100).Draw(t, "seconds")) * time.Second)
			},
			"lose a response": func(t *rapid.T) { m.fail, m.after = true, rapid.Bool().Draw(t, "after it took effect") },
			"stop": func(t *rapid.T) {
				w := some(t)
				w.calls = 0
				w.leave(context.Background())
				m.workers = slices.DeleteFunc(m.workers, func(other *modelWorker) bool { return other == w })
			},
			"": func(t *rapid.T) {
				calls := 0
				for _, w := range m.workers {
					calls += w.calls
				}
				require.LessOrEqual(t, calls, limit)
			},
		})
		m.settle(t)
		usable := 0
		for _, w := range m.workers {
			usable += int(w.limit().usable.Load())
		}
		if len(m.workers) > 0 {
			require.Equal(t, limit, usable, "once all workers see each other, the whole limit can be used")
		}
	})
}

// settle lets leases without an owner expire and, after that, all workers see each other in two sweeps.
func (m *limitModel) settle(t require.TestingT) {
	m.fail = false
	for _, w := range m.workers {
		w.calls = 0
	}
	m.now = m.now.Add(100 * 100 * time.Second) // the furthest that its clock has jumped back
	for range 4 {
		m.pass(m.shared.opts.WorkerTimeout / 3)
		for _, w := range m.workers {
			require.NoError(t, w.renew(context.Background()))
			w.beatAt = m.passed
		}
	}
	for range 2 {
		for _, w := range m.workers {
			require.NoError(t, w.adjust(context.Background(), m.rows(no), none))
		}
	}
}

func TestCallsOfAHandlerAreDividedEvenly(t *testing.T) {
	for n := 1; n < 100; n++ {
		sum, portions := 0, min(n, maxPortions)
		for _, size := range divide(n, portions) {
			sum += size
			require.InDelta(t, float64(n)/float64(portions), size, 1)
		}
		require.Equal(t, n, sum)
	}
}

func TestWorkerHasPartsOfAllLimitsOrOfNone(t *testing.T) {
	m := newLimitModel(t, handler.FleetConcurrency(2), handler.Rate(10, 30))
	for range 5 {
		m.start()
	}
	m.settle(t)
	for i, w := range m.workers {
		l := w.limit()
		require.Equal(t, i < 2, l.usable.Load() == 1)
		require.Equal(t, i < 2, l.bucket.size == 15)
		l.bucket.n = 1
		require.Equal(t, i >= 2, l.holdsBack(), "health expects no progress of it")
	}
}

func TestTakenPortionOfARateBeginsWithoutTokens(t *testing.T) {
	m := newLimitModel(t, handler.Rate(0.001, 2))
	m.start()
	m.settle(t)
	b := m.workers[0].limit().bucket
	require.EqualValues(t, 2, b.size)
	require.Zero(t, b.Ready(), "another worker may just have used the burst")
	require.WithinDuration(t, time.Now().Add(1000*time.Second), b.next(), time.Minute)
	b.n = 2
	m.start()
	m.settle(t)
	require.EqualValues(t, 1, b.size)
	require.Equal(t, 1, b.Ready(), "it passed the other part of the burst on")
}
