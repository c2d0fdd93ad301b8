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
	statements  int
}

type leaseRow struct {
	owner   string
	expires time.Time
}

var errLostResponse = errors.New("connection reset")

func (l *leaseTable) answer(takeEffect func()) error {
	failed := l.fail
	l.fail = false
	l.statements++
	if !failed || l.after {
		takeEffect()
	}
	if failed {
		return errLostResponse
	}
	return nil
}

func (l *leaseTable) AcquireLeases(
	_ context.Context, names []string, owner string, ttl time.Duration, _ time.Time,
) (held []string, err error) {
	err = l.answer(func() {
		for _, name := range names {
			if row, found := l.leases[name]; !found || row.owner == owner || !row.expires.After(l.now) {
				l.leases[name], held = leaseRow{owner, l.now.Add(ttl)}, append(held, name)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}

func (l *leaseTable) LeaseOwners(_ context.Context, names []string) (map[string]string, error) {
	owners := map[string]string{}
	err := l.answer(func() {
		for _, name := range names {
			if row, found := l.leases[name]; found {
				owners[name] = row.owner
			}
		}
	})
	return owners, err
}

func (l *leaseTable) ReleaseLeases(_ context.Context, names []string, owner string) error {
	return l.answer(func() {
		for _, name := range names {
			if l.leases[name].owner == owner {
				delete(l.leases, name)
			}
		}
	})
}

// modelWorker is a worker of the model: its session ends WorkerTimeout after its last heartbeat, by its own clock. Or
// it is a drain, whose calls end before its claims count as stuck, by the database's clock.
type modelWorker struct {
	*allotments
	drains bool
	beatAt time.Time
	calls  int
}

// beat renews the portions. It does not count if that fails.
func (w *modelWorker) beat(m *limitModel) error {
	err := w.renew(context.Background())
	if err == nil {
		w.beatAt = m.passed
		if w.drains {
			w.beatAt = m.now
		}
	}
	return err
}

// adjust adjusts the portions of a worker, or takes free ones for a drain.
func (w *modelWorker) adjust(m *limitModel, silent func() bool) error {
	rows := m.rows(silent)
	if w.drains {
		return w.takeFree(context.Background(), rows)
	}
	return w.allotments.adjust(context.Background(), rows, none)
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

func (m *limitModel) startDrain() {
	m.started++
	opts := m.shared.opts
	m.workers = append(m.workers, &modelWorker{drains: true, beatAt: m.now, allotments: m.shared.newAllotments(
		fmt.Sprint(m.started), opts.StuckMessageThreshold+opts.HeartbeatInterval, nil)})
}

// endSessions ends the sessions without a heartbeat, and stuck drains: their calls are cancelled.
func (m *limitModel) endSessions() {
	m.workers = slices.DeleteFunc(m.workers, func(w *modelWorker) bool {
		if w.drains {
			return m.now.Sub(w.beatAt) >= m.shared.opts.StuckMessageThreshold
		}
		return m.passed.Sub(w.beatAt) >= m.shared.opts.WorkerTimeout
	})
}

// rows are the rows of all workers, of which some seem to be silent.
func (m *limitModel) rows(silent func() bool) (rows []store.WorkerState) {
	for _, w := range m.workers {
		if w.drains {
			continue
		}
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
		t.Repeat(map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				if len(m.workers) == 5 {
					t.Skip("enough workers")
				}
				m.start()
			},
			"start ProcessPending": func(t *rapid.T) {
				if len(m.workers) == 5 {
					t.Skip("enough workers")
				}
				m.startDrain()
			},
			"heartbeat": func(t *rapid.T) {
				if err := some(t).beat(m); err != nil {
					require.ErrorIs(t, err, errLostResponse)
				}
			},
			"sweep": func(t *rapid.T) {
				err := some(t).adjust(m, func() bool { return rapid.IntRange(0, 3).Draw(t, "silent") == 0 })
				if err != nil {
					require.ErrorIs(t, err, errLostResponse)
				}
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
				m.endSessions()
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
	m.workers = slices.DeleteFunc(m.workers, func(w *modelWorker) bool {
		if w.drains {
			w.leave(context.Background())
		}
		return w.drains
	})
	for _, w := range m.workers {
		w.calls = 0
	}
	m.now = m.now.Add(100 * 100 * time.Second) // the furthest that its clock has jumped back
	for range 4 {
		m.pass(m.shared.opts.WorkerTimeout / 3)
		for _, w := range m.workers {
			require.NoError(t, w.beat(m))
		}
	}
	for range 2 {
		for _, w := range m.workers {
			require.NoError(t, w.adjust(m, no))
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

func TestHeartbeatRenewsAllPortionsInOneStatement(t *testing.T) {
	m := newLimitModel(t, handler.FleetConcurrency(32))
	m.start()
	m.settle(t)
	w, before := m.workers[0], m.statements
	require.EqualValues(t, 32, w.limit().usable.Load())
	require.NoError(t, w.beat(m))
	require.Equal(t, before+1, m.statements)
	m.start()
	before = m.statements
	require.NoError(t, w.adjust(m, no))
	require.Equal(t, before+1, m.statements, "half of them are released together")
	require.NoError(t, m.workers[1].adjust(m, no))
	require.Equal(t, before+3, m.statements, "and taken together, after their owners were read")
	require.EqualValues(t, 16, m.workers[1].limit().usable.Load())
}

// TestDrainTakesThePortionOfADeadWorkerOnly proves contract 5.18 for a jump of the database's clock.
func TestDrainTakesThePortionOfADeadWorkerOnly(t *testing.T) {
	m := newLimitModel(t, handler.FleetConcurrency(1))
	m.start()
	m.settle(t)
	m.now = m.now.Add(m.shared.opts.WorkerTimeout + 10*time.Second)
	m.startDrain()
	worker, drain := m.workers[0], m.workers[1]
	silent := func() bool { return true }
	require.NoError(t, drain.beat(m))
	require.NoError(t, drain.adjust(m, silent))
	require.Zero(t, drain.limit().usable.Load())
	require.NoError(t, worker.beat(m))
	require.EqualValues(t, 1, worker.limit().usable.Load())

	dead := m.rows(no)
	dead[0].SilentFor = m.shared.opts.StuckMessageThreshold
	m.now = m.now.Add(dead[0].SilentFor)
	require.NoError(t, drain.takeFree(context.Background(), dead))
	require.EqualValues(t, 1, drain.limit().usable.Load(), "it is dead, and no sweep has marked it as released")
}

// TestPortionIsNotTakenByTheSweepThatReleasesIt leaves time for an earlier release whose response was lost.
func TestPortionIsNotTakenByTheSweepThatReleasesIt(t *testing.T) {
	m := newLimitModel(t, handler.FleetConcurrency(2))
	m.start()
	m.start()
	m.settle(t)
	w, gone := m.workers[0], m.workers[1]
	m.fail, m.after = true, false
	require.ErrorIs(t, w.allotments.adjust(context.Background(), nil, none), errLostResponse, "it should hold none")
	gone.leave(context.Background())
	m.workers = m.workers[:1]
	require.NoError(t, w.adjust(m, no))
	require.EqualValues(t, 1, w.limit().usable.Load(), "the other's, not the one that it has just released")
	require.NoError(t, w.adjust(m, no))
	require.EqualValues(t, 2, w.limit().usable.Load())
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

func TestPortionThatCallsUseIsNotReleased(t *testing.T) {
	t.Parallel()
	l := &fleetLimit{calls: []int{1, 1}, held: []bool{true, true}, target: 1}
	require.Empty(t, l.surplus(2))
	require.Len(t, l.surplus(1), 1)
}
