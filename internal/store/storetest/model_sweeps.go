package storetest

import (
	"cmp"
	"slices"
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
			if row.stopped || row.released {
				delete(m.model.workers, id)
				expected++
			}
		}
		require.EqualValues(m, expected, deleted, "workers deleted")
	}
}

func (m *model) claimed() []models.HandlerStatus { return m.sorted(claimedRow) }

// recoverStep gives back claims whose worker crashed, or claims without a worker (contract 5.9,
// 5.14). With Dies, it marks the worker as dead first. Without it, the worker gives back its own
// claims.
type recoverStep struct {
	Worker int // 0: claims without a worker; some belonged to earlier workers
	Limit  int
	Dies   bool
	Poison bool // at MaxAbandoned
}

func drawRecover(t *rapid.T) operation {
	return recoverStep{
		Worker: rapid.IntRange(0, 4).Draw(t, "worker"),
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
	claims, err := openClaims(m.ctx, m.store)
	require.NoError(m, err)
	m.found(m.model.claimed(), claims)
	var refs []store.Ref
	for _, claim := range claims {
		if claim.WorkerID == m.workerIDs[r.Worker] && len(refs) < r.Limit {
			refs = append(refs, claim.Ref)
		}
	}
	m.learn(refs...)
	var settlements []store.Settlement
	for _, ref := range refs {
		text, next := "workers vanish while running it", m.model.now.Add(time.Second)
		settled := store.Settlement{StatusID: ref.StatusID, HandlerKey: ref.HandlerKey, Version: ref.Version,
			ErrorCount: ref.ErrorCount, AbandonedCount: ref.AbandonedCount + 1, NextAttemptAt: &next}
		if r.Poison {
			settled.Poisoned, settled.LastError, settled.NextAttemptAt = true, &text, nil
		}
		settlements = append(settlements, settled)
	}
	m.settle(settlements, true, false)
}

// found checks that claims has all of the expected rows, each once.
func (m *machine) found(expected []models.HandlerStatus, claims []store.OpenClaim) {
	m.Helper()
	var all []store.OpenClaim
	for _, row := range expected {
		claim := store.OpenClaim{Ref: refOf(row), StartedAt: row.ProcessingStartedAt.UTC()}
		if row.WorkerID != nil {
			claim.WorkerID = *row.WorkerID
		}
		all = append(all, claim)
	}
	require.ElementsMatch(m, all, claims)
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
		m.complete([]store.Completion{{StatusID: ref.StatusID, Version: ref.Version,
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

// walk returns one batch of messages that a cleanup reads (contract 6.1).
func (m *model) walk(req store.CleanupRequest) (batch []models.Message, next store.CleanupCursor, done bool) {
	until := req.Cutoff
	for _, own := range req.HandlerCutoffs {
		if own.Cutoff.After(until) {
			until = own.Cutoff
		}
	}
	if !req.Until.IsZero() && req.Until.Before(until) {
		until = req.Until
	}
	for _, message := range m.messages {
		behind := cmp.Or(message.ReceivedAt.Compare(req.After.ReceivedAt),
			cmp.Compare(int64(message.Number), req.After.MessageNumber)) > 0
		if behind && message.ReceivedAt.Before(until) {
			batch = append(batch, message)
		}
	}
	slices.SortFunc(batch, func(a, b models.Message) int {
		return cmp.Or(a.ReceivedAt.Compare(b.ReceivedAt), cmp.Compare(a.Number, b.Number))
	})
	done, next = len(batch) < req.Limit, req.After
	batch = batch[:min(len(batch), req.Limit)]
	if len(batch) > 0 {
		last := batch[len(batch)-1]
		next = store.CleanupCursor{ReceivedAt: last.ReceivedAt, MessageNumber: int64(last.Number)}
	}
	return batch, next, done
}

// expired returns those statuses of a message that are to be deleted, in the order of acceptance,
// and whether others stay (contract 6.1, 6.2, 6.4).
func (m *model) expired(req store.CleanupRequest, messageID string) (goes []models.HandlerStatus, stays bool) {
	for _, row := range m.rows {
		if row.MessageID != messageID {
			continue
		}
		cutoff := req.Cutoff
		for _, own := range req.HandlerCutoffs {
			if own.HandlerKey == row.HandlerKey {
				cutoff = own.Cutoff
			}
		}
		if row.CompletedAt != nil && row.CompletedAt.Before(cutoff) {
			goes = append(goes, row)
		} else {
			stays = true
		}
	}
	slices.SortFunc(goes, func(a, b models.HandlerStatus) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return goes, stays
}

// remove deletes what is expired of a message, and the message if nothing stays.
func (m *model) remove(req store.CleanupRequest, messageID string) (messages, statuses int64) {
	goes, stays := m.expired(req, messageID)
	for _, row := range goes {
		delete(m.rows, row.ID)
	}
	if !stays {
		delete(m.messages, messageID)
		messages = 1
	}
	return messages, int64(len(goes))
}

// cleanupStep walks a number of batches.
type cleanupStep struct {
	Retention time.Duration            // 0 keeps all
	Own       map[string]time.Duration // handlers' own
	Until     time.Duration            // before now; 0 is no bound
	Limit     int
	Batches   int
	// Archive loads what is to be deleted first, in parts of MaxBytes.
	Archive  bool
	MaxBytes int64
}

func drawCleanup(t *rapid.T) operation {
	retentions := rapid.SampledFrom([]time.Duration{0, time.Microsecond, time.Second, time.Hour, 24 * time.Hour})
	step := cleanupStep{
		Retention: retentions.Draw(t, "retention"),
		Own:       map[string]time.Duration{},
		Until:     rapid.SampledFrom([]time.Duration{0, 0, time.Minute, 2 * time.Hour}).Draw(t, "until"),
		Limit:     rapid.IntRange(1, 4).Draw(t, "limit"),
		Batches:   rapid.IntRange(1, 4).Draw(t, "batches"),
		Archive:   rapid.Bool().Draw(t, "archive"),
		MaxBytes:  rapid.SampledFrom([]int64{1 << 20, 1, 20}).Draw(t, "bytes"),
	}
	for _, key := range some(t, handlerKeys, 0, 2) {
		step.Own[key] = retentions.Draw(t, "own")
	}
	return step
}

func (c cleanupStep) run(m *machine) {
	before := func(d time.Duration) time.Time {
		if d == 0 {
			return time.Time{}
		}
		return m.model.now.Add(-d)
	}
	request := store.CleanupRequest{Cutoff: before(c.Retention), Until: before(c.Until), Limit: c.Limit}
	for key, retention := range c.Own {
		request.HandlerCutoffs = append(request.HandlerCutoffs,
			store.HandlerCutoff{HandlerKey: key, Cutoff: before(retention)})
	}
	m.cleaned = true
	for range c.Batches {
		batch, next, done := m.model.walk(request)
		expected := store.ExpiredBatch{Next: next, Done: done}
		var ids []string
		for _, message := range batch {
			if goes, stays := m.model.expired(request, message.ID); len(goes) > 0 || !stays {
				expected.MessageNumbers, ids = append(expected.MessageNumbers, int64(message.Number)), append(ids, message.ID)
			}
		}
		found, err := m.store.Expired(m.ctx, request)
		require.NoError(m, err)
		require.Equal(m, expected, found)
		if c.Archive {
			m.archive(request, found.MessageNumbers, ids, c.MaxBytes)
		} else {
			result := store.CleanupResult{Next: next, Done: done}
			for _, id := range ids {
				messages, statuses := m.model.remove(request, id)
				result.Messages += messages
				result.Statuses += statuses
			}
			cleaned, err := m.store.Cleanup(m.ctx, request)
			require.NoError(m, err)
			require.Equal(m, result, cleaned)
		}
		if request.After = next; done {
			break
		}
	}
}

// archive loads what is to be deleted, part by part, and deletes what was loaded.
func (m *machine) archive(request store.CleanupRequest, numbers []int64, ids []string, maxBytes int64) {
	m.Helper()
	for len(ids) > 0 {
		loaded, taken, err := m.store.LoadExpired(m.ctx, request, numbers, maxBytes)
		require.NoError(m, err)
		require.Len(m, loaded, taken, "nothing changed meanwhile")
		require.Positive(m, taken)
		var expected store.CleanupResult
		for i, message := range loaded {
			require.Equal(m, ids[i], message.Message.ID)
			require.Equal(m, string(m.model.messages[ids[i]].Content), string(message.Message.Content))
			goes, stays := m.model.expired(request, ids[i])
			require.Equal(m, stays, message.Stays)
			require.Equal(m, pairs(goes), pairs(message.Statuses), "in the order of acceptance")
			messages, statuses := m.model.remove(request, ids[i])
			expected.Messages += messages
			expected.Statuses += statuses
		}
		result, err := m.store.DeleteExpired(m.ctx, loaded)
		require.NoError(m, err)
		require.Equal(m, [2]int64{expected.Messages, expected.Statuses}, [2]int64{result.Messages, result.Statuses})
		numbers, ids = numbers[taken:], ids[taken:]
	}
}
