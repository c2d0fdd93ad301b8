package storetest

import (
	"cmp"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// rules are those of the ordered handlers: a poisoned row parks a lane of "beta", while the handler
// that was once "gamma", under all its names, skips it. "alpha" is not ordered.
var rules = map[string]*store.LaneRule{
	"beta": {Handlers: []int64{store.LaneHandler("beta")}}, "gamma": renamed, "delta": renamed, "epsilon": renamed,
}

var renamed = &store.LaneRule{
	Handlers:     []int64{store.LaneHandler("gamma"), store.LaneHandler("delta"), store.LaneHandler("epsilon")},
	SkipPoisoned: true,
}

// laneOfKey returns the lane into which a deployment accepts a row. It is named by the oldest key:
// "delta" for a deployment that has dropped "gamma".
func laneOfKey(status store.NewStatus, orderingKey []byte) *store.Lane {
	oldest := status.HandlerKey
	switch {
	case rules[status.HandlerKey] == nil:
		return nil
	case oldest == "epsilon":
		oldest = "delta"
	case oldest == "delta":
		oldest = "gamma"
	}
	return store.LaneOf(oldest, orderingKey)
}

// laneOf returns the row's own lane, nil if it has none.
func laneOf(row models.HandlerStatus) *store.Lane {
	if row.LaneKey == nil {
		return nil
	}
	return &store.Lane{Handler: *row.LaneHandler, Key: *row.LaneKey}
}

// sameLane reports whether two rows are in one lane. A lane belongs to its handler under all of the
// handler's names (contract 5.12).
func sameLane(a, b models.HandlerStatus) bool {
	return a.LaneKey != nil && b.LaneKey != nil && *a.LaneKey == *b.LaneKey && rules[a.HandlerKey] == rules[b.HandlerKey]
}

// head reports whether no row of its lane comes before the row, and none of the lane is claimed. A
// poisoned row counts too, unless the handler skips poisoned rows (contract 5.12).
func (m *model) head(row models.HandlerStatus, rule store.LaneRule) bool {
	for _, other := range m.rows {
		if !sameLane(row, other) || other.ID == row.ID || other.CompletedAt != nil {
			continue
		}
		before := other.Sequence < row.Sequence && !(other.IsPoisoned && rule.SkipPoisoned)
		if before || other.HoldsLane {
			return false
		}
	}
	return true
}

// run returns the rows of a run as they are after being claimed (contract 14).
func (m *model) run(workerID string, request store.RunRequest) (claims []models.HandlerStatus) {
	head, current := m.current(request.Head.StatusID, request.Head.Version)
	if worker, known := m.workers[workerID]; !known || worker.released || !current || !head.HoldsLane {
		return nil
	}
	var lane []models.HandlerStatus
	for _, row := range m.rows {
		if sameLane(head, row) && row.CompletedAt == nil && !(row.IsPoisoned && request.SkipPoisoned) {
			lane = append(lane, row)
		}
	}
	slices.SortFunc(lane, func(a, b models.HandlerStatus) int { return cmp.Compare(a.Sequence, b.Sequence) })
	if lane[0].ID != head.ID {
		return nil
	}
	for _, row := range lane[1:] {
		if len(claims) == request.Limit || row.HandlerKey != head.HandlerKey || row.IsPoisoned ||
			row.ProcessingStartedAt != nil || row.NextAttemptAt != nil && row.NextAttemptAt.After(m.now) {
			break
		}
		at, worker := m.now, workerID
		row.ProcessingStartedAt, row.WorkerID, row.IsWaiting = &at, &worker, false
		row.Version++
		m.rows[row.ID] = row
		claims = append(claims, row)
	}
	return claims
}

// adoptMarks copies from the store which rows are marked as waiting. The store may choose which
// rows a claim marks, except for the first of a lane. It may always release any row. adoptMarks
// returns what was marked.
func (m *machine) adoptMarks(mayMark bool) (marked []models.HandlerStatus) {
	m.Helper()
	for _, stored := range storedStatuses(m, m.db) {
		row := m.model.rows[stored.ID]
		if stored.IsWaiting == row.IsWaiting {
			continue
		}
		if stored.IsWaiting {
			require.True(m, mayMark, "%s: marked as waiting by no claim", inWords(stored))
			require.True(m, pending(row) && row.ProcessingStartedAt == nil, "%s: marked as waiting", inWords(row))
			require.False(m, m.model.head(row, *rules[row.HandlerKey]), "%s: first in its lane, and marked as waiting",
				inWords(row))
			marked = append(marked, row)
		}
		row.IsWaiting = stored.IsWaiting
		row.Version++
		m.model.rows[row.ID] = row
	}
	return marked
}

// advanceAfter advances the lanes of rows that ended, unless the caller that ended them died.
func (m *machine) advanceAfter(statusIDs []string, dies bool) {
	m.Helper()
	var requests []store.LaneRequest
	for _, id := range statusIDs {
		row := m.model.rows[id]
		lane := laneOf(row)
		if lane == nil {
			continue
		}
		if dies {
			m.unadvanced[familyLane(row)] = true
			continue
		}
		requests = append(requests, rules[row.HandlerKey].Request(*lane))
		delete(m.unadvanced, familyLane(row))
	}
	before := m.waiting()
	keys, err := m.store.AdvanceLanes(m.ctx, requests, m.model.now)
	require.NoError(m, err)
	m.adoptMarks(false)
	m.freed(before, keys)
	m.notified(requests, keys)
}

// notified checks that AdvanceLanes has returned the key of each lane's first row if that is due,
// whether or not it was marked.
func (m *machine) notified(requests []store.LaneRequest, keys []string) {
	m.Helper()
	for _, row := range m.model.rows {
		if !pending(row) || row.ProcessingStartedAt != nil || row.LaneKey == nil || row.NextAttemptAt != nil &&
			row.NextAttemptAt.After(m.model.now) {
			continue
		}
		advanced := slices.ContainsFunc(requests, func(request store.LaneRequest) bool {
			return request.Key == *row.LaneKey && slices.Contains(request.Handlers, *row.LaneHandler)
		})
		if advanced && m.model.head(row, *rules[row.HandlerKey]) {
			require.Contains(m, keys, row.HandlerKey, "%s is first in its lane and due", inWords(row))
		}
	}
}

// familyLane returns the same lane for all names of a handler.
func familyLane(row models.HandlerStatus) store.Lane {
	return store.Lane{Handler: rules[row.HandlerKey].Handlers[0], Key: *row.LaneKey}
}

func (m *machine) waiting() []models.HandlerStatus {
	return m.model.sorted(func(row models.HandlerStatus) bool { return row.IsWaiting })
}

// freed checks that the keys of released rows were returned, so that these rows get claimed.
func (m *machine) freed(before []models.HandlerStatus, keys []string) {
	m.Helper()
	for _, row := range before {
		if !m.model.rows[row.ID].IsWaiting {
			require.Contains(m, keys, row.HandlerKey, "%s was let go", inWords(row))
		}
	}
}

// lanesStep checks lanes that were not advanced, or releases rows.
type lanesStep struct {
	Release []string // keys whose waiting rows are released; none: check all lanes
	Limit   int
}

func drawLanes(t *rapid.T) operation {
	step := lanesStep{Limit: rapid.IntRange(1, 3).Draw(t, "limit")}
	if rapid.IntRange(0, 3).Draw(t, "release") == 3 {
		step.Release = some(t, handlerKeys, 1, 2)
	}
	return step
}

func (l lanesStep) run(m *machine) {
	if len(l.Release) > 0 {
		before := m.waiting()
		released, err := m.store.ReleaseWaiting(m.ctx, l.Release, l.Limit)
		require.NoError(m, err)
		m.adoptMarks(false)
		theirs := 0
		for _, row := range before {
			if slices.Contains(l.Release, row.HandlerKey) {
				theirs++
			}
		}
		require.EqualValues(m, min(l.Limit, theirs), released)
		require.Len(m, m.waiting(), len(before)-int(released))
		return
	}
	for _, rule := range []*store.LaneRule{rules["beta"], renamed} {
		var all []string
		var after *store.Lane
		for page := 0; ; page++ {
			require.Less(m, page, 100, "the walk over lanes does not end")
			next, keys, err := m.store.CheckLanes(m.ctx, *rule, after, l.Limit, m.model.now)
			require.NoError(m, err)
			all = append(all, keys...)
			if after = next; after == nil {
				break
			}
		}
		before := m.waiting()
		m.adoptMarks(false)
		m.freed(before, all)
		for lane := range m.unadvanced {
			if lane.Handler == rule.Handlers[0] {
				delete(m.unadvanced, lane)
			}
		}
	}
}

// checkLanes checks that every name with waiting rows is found, including old ones.
func (m *machine) checkLanes() {
	m.Helper()
	names, err := m.store.WaitingLaneHandlers(m.ctx)
	require.NoError(m, err)
	expected := map[int64]bool{}
	for _, row := range m.waiting() {
		expected[*row.LaneHandler] = true
	}
	require.Len(m, names, len(expected))
	for _, name := range names {
		require.True(m, expected[name])
	}
}
