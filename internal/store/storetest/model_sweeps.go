package storetest

import (
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// workerStep is what a worker or a sweeper does to a worker's row.
type workerStep struct {
	Worker int
	What   string // heartbeat, stop, release, delete
}

func drawWorker(t *rapid.T) operation {
	return workerStep{
		Worker: rapid.IntRange(1, 2).Draw(t, "worker"),
		What: rapid.SampledFrom([]string{"heartbeat", "heartbeat", "heartbeat", "stop", "release", "delete"}).Draw(t,
			"what"),
	}
}

func (w workerStep) run(m *machine) {
	id := m.workerIDs[w.Worker]
	row, known := m.model.workers[id]
	switch w.What {
	case "heartbeat":
		err := m.store.Heartbeat(m.ctx, store.Worker{ID: id, Host: "host", PID: w.Worker, HandlerKeys: []string{"alpha"}},
			m.model.now)
		if row.released {
			require.ErrorIs(m, err, store.ErrWorkerReleased)
			m.workerIDs = append(m.workerIDs, id) // its claims are still there
			m.workerIDs[w.Worker] = uuid.NewString()
			w.run(m)
			return
		}
		require.NoError(m, err)
		m.model.workers[id] = row
	case "stop":
		require.NoError(m, m.store.StopWorker(m.ctx, id, m.model.now))
		if row.stopped = true; known {
			m.model.workers[id] = row
		}
	case "release":
		require.NoError(m, m.store.MarkReleased(m.ctx, id, m.model.now))
		if row.released = true; known {
			m.model.workers[id] = row
		}
	case "delete":
		deleted, err := m.store.DeleteWorkers(m.ctx, m.workerIDs[1:])
		require.NoError(m, err)
		expected := 0
		for id, row := range m.model.workers {
			if (row.stopped || row.released) && len(m.model.claimsOf(id)) == 0 {
				delete(m.model.workers, id)
				expected++
			}
		}
		require.EqualValues(m, expected, deleted, "workers deleted")
	}
}

func (m *model) claimsOf(workerID string) []models.HandlerStatus {
	return m.sorted(func(row models.HandlerStatus) bool {
		return claimedRow(row) && row.WorkerID != nil && *row.WorkerID == workerID
	})
}

func (m *model) stuck(before time.Time) []models.HandlerStatus {
	return m.sorted(func(row models.HandlerStatus) bool {
		return claimedRow(row) && row.WorkerID == nil && !row.ProcessingStartedAt.After(before)
	})
}

// recoverStep gives back claims whose worker crashed, or old claims without a worker (contract 5.9,
// 5.14). With Dies, it marks the worker as dead first. Without it, the worker gives back its own
// claims.
type recoverStep struct {
	Worker int // 0: claims without a worker; some belonged to earlier workers
	Age    time.Duration
	Limit  int
	Dies   bool
	Poison bool // at MaxAbandoned
}

func drawRecover(t *rapid.T) operation {
	return recoverStep{
		Worker: rapid.IntRange(0, 4).Draw(t, "worker"),
		Age:    rapid.SampledFrom([]time.Duration{0, time.Second, time.Hour}).Draw(t, "age"),
		Limit:  rapid.IntRange(1, 3).Draw(t, "limit"),
		Dies:   rapid.Bool().Draw(t, "dies"),
		Poison: rapid.IntRange(0, 4).Draw(t, "poison") == 4,
	}
}

func (r recoverStep) run(m *machine) {
	r.Worker = min(r.Worker, len(m.workerIDs)-1)
	if r.Worker > 0 && r.Dies {
		workerStep{Worker: r.Worker, What: "release"}.run(m)
	}
	before := m.model.now.Add(-r.Age)
	find, expected := func() ([]store.Ref, error) {
		return m.store.StuckClaims(m.ctx, before, r.Limit)
	}, m.model.stuck(before)
	if r.Worker > 0 {
		id := m.workerIDs[r.Worker]
		find, expected = func() ([]store.Ref, error) { return m.store.ClaimsOf(m.ctx, id, r.Limit) }, m.model.claimsOf(id)
	}
	refs, err := find()
	require.NoError(m, err)
	m.found(expected, refs, r.Limit)
	m.learn(refs...)
	var settlements []store.Settlement
	for _, ref := range refs {
		text, next := "workers vanish while running it", m.model.now.Add(time.Second)
		settled := store.Settlement{StatusID: ref.StatusID, HandlerKey: ref.HandlerKey, Version: ref.Version,
			Locator:    ref.Locator,
			ErrorCount: ref.ErrorCount, AbandonedCount: ref.AbandonedCount + 1, NextAttemptAt: &next}
		if r.Poison {
			settled.Poisoned, settled.LastError, settled.NextAttemptAt = true, &text, nil
		}
		settlements = append(settlements, settled)
	}
	m.settle(settlements, true, false)
}

// found checks that refs has as many of the expected rows as the limit allows, each once.
func (m *machine) found(expected []models.HandlerStatus, refs []store.Ref, limit int) {
	m.Helper()
	require.Len(m, refs, min(limit, len(expected)))
	var all []store.Ref
	for _, row := range expected {
		all = append(all, refOf(row))
	}
	seen := map[string]bool{}
	for _, ref := range unplaced(refs) {
		require.False(m, seen[ref.StatusID], "found twice")
		seen[ref.StatusID] = true
		require.Contains(m, all, ref)
	}
}

// operatorStep retries or discards a poisoned status (contract 11.1).
type operatorStep struct {
	What  string // retry, discard
	Index int
}

func drawOperator(t *rapid.T) operation {
	return operatorStep{
		What:  rapid.SampledFrom([]string{"retry", "discard"}).Draw(t, "what"),
		Index: rapid.IntRange(0, 5).Draw(t, "index"),
	}
}

func (o operatorStep) run(m *machine) {
	ref, found := m.pick(target{Of: "poisoned", Index: o.Index})
	if !found {
		return
	}
	if o.What == "discard" {
		m.complete([]store.Completion{{StatusID: ref.StatusID, Version: ref.Version, Locator: ref.Locator,
			Outcome: models.OutcomeDiscarded}}, "together", false)
		return
	}
	changed := m.db.Model(&models.HandlerStatus{}).Where("id = ? AND version = ? AND is_poisoned", ref.StatusID,
		ref.Version).Updates(map[string]any{
		"error_count": 0, "is_poisoned": false, "requeued_count": gorm.Expr("requeued_count + 1"),
		"version": gorm.Expr("version + 1"),
	})
	require.NoError(m, changed.Error)
	require.EqualValues(m, 1, changed.RowsAffected)
	m.model.retry(m.model.rows[ref.StatusID])
}

type pauseStep struct {
	Key    string
	Paused bool
}

func drawPause(t *rapid.T) operation {
	return pauseStep{Key: rapid.SampledFrom(handlerKeys).Draw(t, "key"), Paused: rapid.Bool().Draw(t, "paused")}
}

func (p pauseStep) run(m *machine) {
	require.NoError(m, m.store.SetPaused(m.ctx, p.Key, p.Paused, m.model.now))
	if delete(m.model.paused, p.Key); p.Paused {
		m.model.paused[p.Key] = true
	}
}

type advanceStep struct{ By time.Duration }

func drawAdvance(t *rapid.T) operation { return advanceStep{delays.Draw(t, "by")} }

func (a advanceStep) run(m *machine) { m.model.now = m.model.now.Add(a.By) }
