package storetest

import (
	"cmp"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// readStep runs all queries.
type readStep struct {
	Key      string
	Keys     []string
	Messages []string
	Limit    int
}

func drawRead(t *rapid.T) operation {
	return readStep{
		Key: rapid.SampledFrom(handlerKeys).Draw(t, "key"), Keys: some(t, handlerKeys, 0, 3),
		Messages: some(t, messageIDs, 0, 3), Limit: rapid.IntRange(1, 3).Draw(t, "limit"),
	}
}

func (l readStep) run(m *machine) {
	l.readPending(m)
	l.readRows(m)
	m.checkLanes()

	paused, err := m.store.Paused(m.ctx)
	require.NoError(m, err)
	require.Len(m, paused, len(m.model.paused))
	for _, key := range paused {
		require.True(m, m.model.paused[key], key)
	}

	workers, err := m.store.Workers(m.ctx, m.model.now)
	require.NoError(m, err)
	stored := map[string]modelWorker{}
	for _, worker := range workers {
		stored[worker.ID] = modelWorker{stopped: worker.Stopped, released: worker.Released}
	}
	require.Equal(m, m.model.workers, stored)
}

func (l readStep) readPending(m *machine) {
	keys, err := m.store.PendingKeys(m.ctx)
	require.NoError(m, err)
	distinct := map[string]bool{}
	for _, row := range m.model.sorted(pending) {
		distinct[row.HandlerKey] = true
	}
	require.Len(m, keys, len(distinct), "pending keys")
	for _, key := range keys {
		require.True(m, distinct[key], key)
	}

	refs, err := m.store.PendingOf(m.ctx, l.Key, l.Limit)
	require.NoError(m, err)
	expected := m.model.unclaimed(l.Key)
	// Rows that wait in a lane come last.
	slices.SortStableFunc(expected, func(a, b models.HandlerStatus) int {
		switch {
		case a.IsWaiting && b.IsWaiting:
			return cmp.Compare(a.ID, b.ID)
		case a.IsWaiting:
			return 1
		case b.IsWaiting:
			return -1
		}
		return 0
	})
	expected = expected[:min(l.Limit, len(expected))]
	require.Len(m, refs, len(expected))
	for i, ref := range unplaced(refs) {
		require.Equal(m, refOf(expected[i]), ref, "oldest due first")
	}
	m.learn(refs...)

	next, ok, err := m.store.NextDue(m.ctx, l.Keys, m.model.now)
	require.NoError(m, err)
	later := m.model.sorted(func(row models.HandlerStatus) bool {
		return pending(row) && !row.IsWaiting && row.ProcessingStartedAt == nil && slices.Contains(l.Keys, row.HandlerKey) &&
			due(row).After(m.model.now)
	})
	require.Equal(m, len(later) > 0, ok, "something due later")
	if ok {
		require.Equal(m, due(later[0]), next)
	}
}

func (l readStep) readRows(m *machine) {
	var numbers []int64
	for _, id := range l.Messages {
		if message, stored := m.model.messages[id]; stored {
			numbers = append(numbers, int64(message.Number))
		}
	}
	siblings, err := m.store.Siblings(m.ctx, numbers, l.Keys)
	require.NoError(m, err)
	rows := m.model.sorted(func(row models.HandlerStatus) bool {
		return slices.Contains(l.Messages, row.MessageID) && slices.Contains(l.Keys, row.HandlerKey)
	})
	slices.SortFunc(rows, func(a, b models.HandlerStatus) int {
		return cmp.Or(cmp.Compare(m.model.messages[a.MessageID].Number, m.model.messages[b.MessageID].Number),
			cmp.Compare(a.HandlerKey, b.HandlerKey))
	})
	require.Len(m, siblings, len(rows))
	ids, states := []string{}, map[string]store.State{}
	for i, sibling := range siblings {
		m.learn(sibling.Ref)
		sibling.Locator = ""
		row := rows[i]
		require.Equal(m, store.Sibling{
			Ref: refOf(row), MessageNumber: int64(m.model.messages[row.MessageID].Number),
			Processing: row.ProcessingStartedAt != nil, Poisoned: row.IsPoisoned, Completed: row.CompletedAt != nil,
			Outcome: row.Outcome,
		}, sibling)
		state := store.State{Version: int64(row.Version), Completed: row.CompletedAt != nil, Poisoned: row.IsPoisoned,
			Processing: row.ProcessingStartedAt != nil}
		if row.WorkerID != nil {
			state.WorkerID = *row.WorkerID
		}
		ids, states[row.ID] = append(ids, row.ID), state
	}
	found, err := m.store.States(m.ctx, ids)
	require.NoError(m, err)
	require.Equal(m, states, found)
}
