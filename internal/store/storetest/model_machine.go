package storetest

import (
	"context"
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
	{"random operations leave what a simple model says", func(s *suite) {
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
	if s.postgres() {
		require.NoError(s,
			s.db.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`).Error)
		pool.SetMaxIdleConns(0) // the setting applies to new connections
		pool.SetMaxIdleConns(2)
		return
	}
	pool.SetMaxOpenConns(1) // the pragma belongs to a connection
	require.NoError(s, s.db.Exec(`PRAGMA synchronous = off`).Error)
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
		model:     newModel(noon.AddDate(-1, 0, 0), !s.postgres()),
		workerIDs: []string{"", uuid.NewString(), uuid.NewString()},
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
