package storetest

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// modelBudget is how long the model test takes, unless -rapid.checks or RAPID_CHECKS sets the
// number of sequences, as in
//
//	go test ./internal/store/sqlite -run 'TestSQLite$/^Model' -rapid.checks=5000 -rapid.steps=60
//
// A failing sequence is shortened for -rapid.shrinktime (30 s). It can be run again with the
// -rapid.failfile or -rapid.seed that the failure names.
const modelBudget = 3 * time.Second

var modelTests = []test{
	{"random operations leave what the model predicts", func(s *suite) {
		s.hasten()
		long, begun, sequences, failed := longRun(), time.Now(), 0, false
		for sequences == 0 || !long && time.Since(begun) < modelBudget {
			rapid.Check(s.T, func(t *rapid.T) {
				// After a sequence has failed, every shorter one must be run.
				if !long && !failed && time.Since(begun) > modelBudget {
					return
				}
				sequences++
				ended := false
				defer func() { failed = failed || !ended }()
				// It has its own deadline, because long runs take longer than the suite's.
				ctx, cancel := context.WithTimeout(s.T.Context(), patience)
				defer cancel()
				m := newMachine(ctx, t, s)
				t.Repeat(map[string]func(*rapid.T){
					"":     func(*rapid.T) { m.check() },
					"step": func(t *rapid.T) { operations.Draw(t, "next").run(m) },
				})
				ended = true
			})
		}
		s.Logf("%d sequences", sequences)
	}},
}

// hasten turns off waiting for the disk: other tests cover durability.
func (s *suite) hasten() {
	s.Helper()
	pool, err := s.db.DB()
	require.NoError(s, err)
	switch {
	case s.isPostgres():
		require.NoError(s,
			s.db.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`).Error)
		pool.SetMaxIdleConns(0) // the setting applies to new connections
		pool.SetMaxIdleConns(2)
	case !s.isServer():
		pool.SetMaxOpenConns(1) // the pragma belongs to a connection
		require.NoError(s, s.db.Exec(`PRAGMA synchronous = off`).Error)
	}
}

// longRun reports whether a number of sequences was requested.
func longRun() bool {
	_, asked := os.LookupEnv("RAPID_CHECKS")
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "rapid.checks" })
	return asked
}

// machine drives the store and the model side by side.
type machine struct {
	*rapid.T
	ctx   context.Context
	db    *gorm.DB
	store store.Store
	model *model
	// workerIDs holds the workers' IDs by their number in an operation. 0 is manual mode. IDs of
	// workers that were declared dead are appended at the end.
	workerIDs []string
	// known holds the statuses that the store has ever returned, at their versions. Slow, crashed
	// or stale callers may use them.
	known []store.Ref
	// ends holds where the last claim of each key ended.
	ends map[string]store.Place
	// claimed holds the versions that claims have returned.
	claimed map[version]bool
	// seen holds the rows after the step before. cleaned means that the step since then may delete
	// some.
	seen    map[string]models.HandlerStatus
	cleaned bool
	steps   int
	// unadvanced holds lanes in which a row ended and that were not advanced. Their first row may be
	// marked as waiting until CheckLanes finds it.
	unadvanced map[store.Lane]bool
}

// version is a status at one of its versions.
type version struct {
	statusID string
	version  int64
}

func newMachine(ctx context.Context, t *rapid.T, s *suite) *machine {
	s.empty(ctx)
	m := &machine{
		T: t, ctx: ctx, db: s.db.WithContext(ctx), store: s.store,
		// A year before noon: no sequence gets ahead of the database's clock.
		model:     newModel(noon.AddDate(-1, 0, 0), !s.isServer()),
		workerIDs: []string{"", uuid.NewString(), uuid.NewString()},
		ends:      map[string]store.Place{},
		claimed:   map[version]bool{}, seen: map[string]models.HandlerStatus{}, unadvanced: map[store.Lane]bool{},
	}
	for number := range m.workerIDs[1:] {
		workerStep{Worker: number + 1, What: "heartbeat"}.run(m)
	}
	return m
}

// empty deletes what an earlier sequence has left, which is cheaper than a database for each
// sequence.
func (s *suite) empty(ctx context.Context) {
	s.Helper()
	for _, table := range []string{"handler_statuses", "messages", "rejected_messages", "workers", "handlers"} {
		require.NoError(s, s.db.WithContext(ctx).Exec("DELETE FROM inbox_"+table).Error)
	}
}

// check compares whole tables and checks what must hold in any case.
func (m *machine) check() {
	m.Helper()
	rows := storedStatuses(m, m.db)
	byID := make(map[string]models.HandlerStatus, len(rows))
	for _, row := range rows {
		byID[row.ID] = row
	}
	checkRows(m, rows)
	checkLanes(m, rows, m.unadvanced)
	checkSteps(m, m.seen, byID, m.cleaned)
	m.seen, m.cleaned = byID, false
	for id, expected := range m.model.rows {
		require.Equal(m, inWords(expected), inWords(byID[id]))
	}
	require.Len(m, byID, len(m.model.rows))

	var messages []models.Message
	require.NoError(m, m.db.Find(&messages).Error)
	stored := make(map[string]models.Message, len(messages))
	for _, message := range messages {
		message.ReceivedAt = message.ReceivedAt.UTC()
		stored[message.ID] = message
	}
	require.Equal(m, m.model.messages, stored)

	offsets := []int64{}
	require.NoError(m, m.db.Model(&models.RejectedMessage{}).Order("record_offset").Pluck("record_offset", &offsets).Error)
	require.ElementsMatch(m, slices.Collect(maps.Keys(m.model.rejected)), offsets)
}

// adopt copies into the model's new rows what the store assigned: messages' numbers, and the IDs
// and sequences of statuses that were not seen before, in the order of acceptance.
func (m *machine) adopt(added []models.HandlerStatus) {
	m.Helper()
	var stored []models.Message
	require.NoError(m, m.db.Select("id", "number").Find(&stored).Error)
	for _, row := range stored {
		if message, known := m.model.messages[row.ID]; known && message.Number == 0 {
			require.Positive(m, row.Number)
			message.Number = row.Number
			m.model.messages[row.ID] = message
		}
	}
	rows := storedStatuses(m, m.db)
	last := models.Sequence(0)
	for _, row := range m.model.rows {
		last = max(last, row.Sequence)
	}
	fresh := slices.DeleteFunc(rows, func(row models.HandlerStatus) bool {
		_, known := m.model.rows[row.ID]
		return known
	})
	require.Equal(m, pairs(added), pairs(fresh), "the rows that were added")
	for i, row := range fresh {
		require.Greater(m, row.Sequence, last, "the sequence is the order of acceptance")
		last = row.Sequence
		require.Equal(m, uuid.Version(7), uuid.MustParse(row.ID).Version())
		added[i].ID, added[i].Sequence = row.ID, row.Sequence
		added[i].MessageNumber = int64(m.model.messages[row.MessageID].Number)
		m.model.rows[row.ID] = added[i]
	}
}

// storedStatuses reads every status in the order of acceptance, with times in UTC.
func storedStatuses(t require.TestingT, db *gorm.DB) []models.HandlerStatus {
	var rows []models.HandlerStatus
	require.NoError(t, db.Order("sequence").Find(&rows).Error)
	for i := range rows {
		rows[i].CreatedAt = rows[i].CreatedAt.UTC()
		for _, at := range []*time.Time{rows[i].ProcessingStartedAt, rows[i].NextAttemptAt, rows[i].CompletedAt} {
			if at != nil {
				*at = at.UTC()
			}
		}
	}
	return rows
}

// inWords formats a row on one line, the same for equal rows. A failing comparison prints it.
func inWords(row models.HandlerStatus) string {
	words, err := json.Marshal(row)
	if err != nil { // only strings, numbers and times
		panic(err)
	}
	return string(words)
}

// checkRows checks what holds for the statuses at any moment, whatever was done.
func checkRows(t require.TestingT, rows []models.HandlerStatus) {
	found, numbers := map[[2]string]bool{}, map[string]int64{}
	for _, row := range rows {
		name := row.MessageID + "/" + row.HandlerKey
		if number, known := numbers[row.MessageID]; known {
			require.Equal(t, number, row.MessageNumber, "%s: the number of its message", name)
		}
		numbers[row.MessageID] = row.MessageNumber
		pair := [2]string{row.MessageID, row.HandlerKey}
		require.False(t, found[pair], "%s: one status per message and handler (3.2)", name)
		found[pair] = true
		require.Positive(t, row.Version, name)
		require.Equal(t, row.CompletedAt != nil, row.Outcome != "", "%s: an outcome and only when completed", name)
		if row.CompletedAt != nil {
			require.False(t, row.IsPoisoned, "%s: completed and poisoned", name)
			require.Zero(t, row.AbandonedCount, "%s: a finished attempt resets it (5.9)", name)
		}
		if row.CompletedAt != nil || row.IsPoisoned {
			require.Nil(t, row.ProcessingStartedAt, "%s: at its end and claimed", name)
			require.Nil(t, row.NextAttemptAt, "%s: at its end and to be tried again (5.5)", name)
		}
		if row.ProcessingStartedAt == nil {
			require.Nil(t, row.WorkerID, "%s: a worker without a claim", name)
		}
	}
}

// checkSteps checks what holds between two reads of the statuses, by their IDs.
func checkSteps(t require.TestingT, before, after map[string]models.HandlerStatus, cleaned bool) {
	for id, was := range before {
		name := was.MessageID + "/" + was.HandlerKey
		is, there := after[id]
		if !there {
			require.True(t, cleaned, "%s: gone without a cleanup", name)
			require.NotNil(t, was.CompletedAt, "%s: gone, and it was not completed (6.4)", name)
			continue
		}
		if is.Version == was.Version {
			require.Equal(t, inWords(was), inWords(is), "%s: changed without a new version (3.2)", name)
			continue
		}
		require.Greater(t, is.Version, was.Version, "%s: a version never falls", name)
		require.Nil(t, was.CompletedAt, "%s: changed after it was completed", name)
		require.Equal(t, [3]any{was.MessageID, was.HandlerKey, was.Sequence},
			[3]any{is.MessageID, is.HandlerKey, is.Sequence}, name)
		require.Equal(t, was.CreatedAt, is.CreatedAt, name)
		require.GreaterOrEqual(t, is.RequeuedCount, was.RequeuedCount, name)
	}
}

// checkLanes checks what must hold for lanes, whatever was done. In unadvanced lanes the first row
// may be marked as waiting. Rows are in the order of acceptance.
func checkLanes(t require.TestingT, rows []models.HandlerStatus, unadvanced map[store.Lane]bool) {
	holders, firsts := map[store.Lane]models.HandlerStatus{}, map[store.Lane]models.HandlerStatus{}
	for _, row := range rows {
		if row.HoldsLane {
			require.True(t, claimedRow(row) && row.LaneKey != nil, "%s: holds a lane", inWords(row))
			other, held := holders[familyLane(row)]
			require.False(t, held, "%s and %s are claimed in one lane (5.12)", inWords(row), inWords(other))
			holders[familyLane(row)] = row
		}
		if row.IsWaiting {
			require.True(t, pending(row) && row.ProcessingStartedAt == nil && row.LaneKey != nil, "%s: waits", inWords(row))
		}
		if rules[row.HandlerKey] == nil || row.LaneKey == nil || row.CompletedAt != nil {
			continue
		}
		if row.IsPoisoned && rules[row.HandlerKey].SkipPoisoned {
			continue
		}
		if _, found := firsts[familyLane(row)]; !found {
			firsts[familyLane(row)] = row
		}
	}
	for lane, row := range firsts {
		if _, held := holders[lane]; !held && !unadvanced[lane] {
			require.False(t, row.IsWaiting, "%s: first in its lane and forgotten (5.12)", inWords(row))
		}
	}
}

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

	next, err := m.store.NextDue(m.ctx, l.Keys, m.model.now)
	require.NoError(m, err)
	later := m.model.sorted(func(row models.HandlerStatus) bool {
		return pending(row) && !row.IsWaiting && row.ProcessingStartedAt == nil && slices.Contains(l.Keys, row.HandlerKey) &&
			due(row).After(m.model.now)
	})
	if len(later) == 0 {
		require.Zero(m, next, "nothing is due later")
	} else {
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
	var refs []store.Ref
	states := map[string]store.State{}
	for i, sibling := range siblings {
		m.learn(sibling.Ref)
		row := rows[i]
		require.Equal(m, store.Sibling{
			Ref:        refOf(row),
			Processing: row.ProcessingStartedAt != nil, Poisoned: row.IsPoisoned, Completed: row.CompletedAt != nil,
			Outcome: row.Outcome,
		}, sibling)
		refs, states[row.ID] = append(refs, refOf(row)), store.State{Version: int64(row.Version),
			Completed: row.CompletedAt != nil, Poisoned: row.IsPoisoned, Processing: row.ProcessingStartedAt != nil}
	}
	found, err := m.store.States(m.ctx, refs)
	require.NoError(m, err)
	require.Equal(m, states, found)
}
