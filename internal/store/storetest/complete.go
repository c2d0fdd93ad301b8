package storetest

import (
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

var completeTests = []test{
	{"a completed status is ended, its history kept", func(s *suite) {
		s.accept(message("m1", "mail"))
		text := "no luck"
		failed := settlement(s.claim(noon, 1, "mail")[0])
		failed.ErrorCount, failed.AbandonedCount, failed.LastError = 3, 2, &text
		s.settle(failed)
		at := noon.Add(time.Minute)
		s.complete(at, s.claimAs(s.worker("mail"), noon, 1, "mail")...)
		row := s.status("m1", "mail")
		require.Equal(s, at, row.CompletedAt.UTC())
		require.Equal(s, models.OutcomeProcessed, row.Outcome)
		require.Nil(s, row.ProcessingStartedAt)
		require.Nil(s, row.WorkerID)
		require.Nil(s, row.NextAttemptAt)
		require.Zero(s, row.AbandonedCount)
		require.Equal(s, 3, row.ErrorCount)
		require.Equal(s, text, *row.LastError)
		require.EqualValues(s, 5, row.Version)
		require.Empty(s, s.claim(at, 10, "mail"))
	}},
	{"one stale version never keeps the others from completing", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"))
		claims := s.claim(noon, 10, "mail")
		s.settle(settlement(claims[1])) // released by another caller meanwhile
		before := s.status("m2", "mail")
		// A place can be used again: the version decides and not the place.
		refs, err := s.store.PendingOf(s.ctx, "mail", 1)
		require.NoError(s, err)
		require.Equal(s, "m2", refs[0].MessageID)
		claims[1].Locator = refs[0].Locator
		completions := []store.Completion{completion(claims[0]), completion(claims[1]), completion(claims[2]),
			{StatusID: uuid.NewString(), Version: 1, Outcome: models.OutcomeProcessed}}
		applied, err := s.store.Complete(s.ctx, completions, noon, store.AwaitLocked)
		require.NoError(s, err)
		require.Equal(s, []bool{true, false, true, false}, applied)
		require.Equal(s, before, s.status("m2", "mail"))

		again, err := s.store.Complete(s.ctx, completions, noon.Add(time.Hour), store.AwaitLocked)
		require.NoError(s, err)
		require.Equal(s, []bool{false, false, false, false}, again)
	}},
	{"a missing or outdated locator costs nothing but time", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"))
		claims := s.claim(noon, 10, "mail")
		if s.postgres() {
			require.NoError(s, s.db.Exec(`VACUUM FULL inbox_handler_statuses`).Error)
		}
		claims[0].Locator = ""
		claims[1].Locator, claims[2].Locator = claims[2].Locator, "(4000000,1)"
		if !s.postgres() {
			claims[2].Locator = "nonsense"
		}
		s.complete(noon, claims...)
	}},
	{"a pending status can be ended as superseded, a poisoned one as discarded", func(s *suite) {
		s.accept(message("m1", "old", "new"))
		pending := s.status("m1", "old")
		poisoned := settlement(s.claim(noon, 1, "new")[0])
		poisoned.Poisoned = true
		s.settle(poisoned)
		applied, err := s.store.Complete(s.ctx, []store.Completion{
			{StatusID: pending.ID, Version: int64(pending.Version), Outcome: models.OutcomeSuperseded},
			{StatusID: poisoned.StatusID, Version: poisoned.Version + 1, Outcome: models.OutcomeDiscarded},
		}, noon, store.AwaitLocked)
		require.NoError(s, err)
		require.Equal(s, []bool{true, true}, applied)
		require.Equal(s, models.OutcomeSuperseded, s.status("m1", "old").Outcome)
		row := s.status("m1", "new")
		require.Equal(s, models.OutcomeDiscarded, row.Outcome)
		require.False(s, row.IsPoisoned)
	}},
	{"CompleteTx lives and dies with the handler's transaction", func(s *suite) {
		s.accept(message("m1", "mail"))
		claim := s.claim(noon, 1, "mail")[0]
		tx := s.begin()
		applied, err := completeTx(s, tx, completion(claim))
		require.NoError(s, err)
		require.True(s, applied)
		require.NoError(s, tx.Rollback().Error)
		require.Nil(s, s.status("m1", "mail").CompletedAt)

		tx = s.begin()
		applied, err = completeTx(s, tx, completion(claim))
		require.NoError(s, err)
		require.True(s, applied)
		again, err := completeTx(s, tx, completion(claim))
		require.NoError(s, err)
		require.False(s, again)
		require.NoError(s, tx.Commit().Error)
		row := s.status("m1", "mail")
		require.Equal(s, models.OutcomeProcessed, row.Outcome)
		require.Equal(s, noon, row.CompletedAt.UTC())
		require.EqualValues(s, 3, row.Version)
	}},
	{"CurrentTx tells what is still at its version, and CompleteTx has the last word", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"), message("m4", "mail"))
		claims := s.claim(noon, 4, "mail")
		s.settle(settlement(claims[1])) // released: its version has moved on by one
		s.complete(noon, claims[3])
		all := []store.Completion{completion(claims[2]), completion(claims[1]), completion(claims[3]), completion(claims[0])}
		tx := s.begin()
		current, err := s.store.CurrentTx(s.ctx, tx, all)
		require.NoError(s, err)
		require.Equal(s, []bool{true, false, false, true}, current)
		expected := []bool{true, false, false, true}
		if !s.store.SingleWriter() { // it locks nothing
			s.settle(settlement(claims[0]))
			expected[3] = false
		}
		applied, err := s.store.CompleteTx(s.ctx, tx, all, noon)
		require.NoError(s, err)
		require.Equal(s, expected, applied)
		require.NoError(s, tx.Commit().Error)
		require.EqualValues(s, 3, s.status("m3", "mail").Version)
		require.Nil(s, s.status("m2", "mail").CompletedAt)
	}},
	{"CompleteTx of a stale version changes nothing", func(s *suite) {
		s.accept(message("m1", "mail"))
		stale := s.claim(noon, 1, "mail")[0]
		s.settle(settlement(stale)) // released: its version has moved on by one
		tx := s.begin()
		applied, err := completeTx(s, tx, completion(stale))
		require.NoError(s, err)
		require.False(s, applied)
		require.NoError(s, tx.Commit().Error)
		require.Nil(s, s.status("m1", "mail").CompletedAt)
	}},
	{"of several who complete one version, one does", func(s *suite) {
		s.accept(message("m1", "mail"))
		claim := s.claim(noon, 1, "mail")[0]
		wins := make([]bool, 10)
		s.noErrors(racetest.Together(len(wins), func(i int) error {
			applied, err := s.store.Complete(s.ctx, []store.Completion{completion(claim)}, noon, store.AwaitLocked)
			if err == nil {
				wins[i] = applied[0]
			}
			return err
		}))
		count := 0
		for _, won := range wins {
			if won {
				count++
			}
		}
		require.Equal(s, 1, count)
		require.EqualValues(s, 3, s.status("m1", "mail").Version)
	}},
	{"States tells what became of a write", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"), message("m4", "mail"))
		worker := s.worker("mail")
		claims := s.claimAs(worker, noon, 3, "mail")
		s.complete(noon, claims[0])
		poisoned := settlement(claims[1])
		poisoned.Poisoned = true
		s.settle(poisoned)
		pending := s.status("m4", "mail")
		states, err := s.store.States(s.ctx, []string{claims[0].StatusID, claims[1].StatusID, claims[2].StatusID, pending.ID,
			uuid.NewString()})
		require.NoError(s, err)
		require.Equal(s, map[string]store.State{
			claims[0].StatusID: {Version: 3, Completed: true},
			claims[1].StatusID: {Version: 3, Poisoned: true},
			claims[2].StatusID: {Version: 2, Processing: true, WorkerID: worker},
			pending.ID:         {Version: 1},
		}, states)
	}},
	{"nothing to do is nothing done", func(s *suite) {
		applied, err := s.store.Complete(s.ctx, nil, noon, store.AwaitLocked)
		require.NoError(s, err)
		require.Empty(s, applied)
		applied, err = s.store.Settle(s.ctx, nil, store.AwaitLocked)
		require.NoError(s, err)
		require.Empty(s, applied)
		states, err := s.store.States(s.ctx, nil)
		require.NoError(s, err)
		require.Empty(s, states)
	}},
}
