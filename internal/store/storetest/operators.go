package storetest

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// tryRerun runs a status again as package ops does. It returns nil if the store left the status alone.
func (s *suite) tryRerun(row models.HandlerStatus, now time.Time) (opened *store.ChangedStatus, err error) {
	err = s.store.Act(s.ctx, func(tx *gorm.DB) error {
		pool := s.poolOf(tx)
		locked, err := s.store.LockMessages(s.ctx, pool, []int64{row.MessageNumber})
		if err != nil || len(locked) == 0 {
			return err
		}
		opened, err = s.store.RerunStatus(s.ctx, pool, row.MessageNumber, row.HandlerKey, int64(row.Version), now)
		return err
	})
	return opened, err
}

func (s *suite) rerun(row models.HandlerStatus, now time.Time) *store.ChangedStatus {
	s.Helper()
	opened, err := s.tryRerun(row, now)
	require.NoError(s, err)
	return opened
}

// reschedule returns the messages of the changed statuses.
func (s *suite) reschedule(at, now time.Time, refs ...store.VersionedID) (changed []string) {
	s.Helper()
	require.NoError(s, s.store.Act(s.ctx, func(tx *gorm.DB) error {
		done, err := s.store.RescheduleStatuses(s.ctx, s.poolOf(tx), refs, at, now)
		for _, c := range done {
			changed = append(changed, c.MessageID)
		}
		return err
	}))
	return changed
}

func (s *suite) releaseClaim(ref store.VersionedID, now time.Time) (released *store.ChangedStatus) {
	s.Helper()
	require.NoError(s, s.store.Act(s.ctx, func(tx *gorm.DB) (err error) {
		released, err = s.store.ReleaseClaim(s.ctx, s.poolOf(tx), ref, now)
		return err
	}))
	return released
}

// lastAttempt returns the latest entry of a status's attempts.
func (s *suite) lastAttempt(row models.HandlerStatus) map[string]any {
	s.Helper()
	var entries []map[string]any
	require.NotNil(s, row.Attempts)
	require.NoError(s, json.Unmarshal([]byte(*row.Attempts), &entries))
	return entries[len(entries)-1]
}

// actionTests cover what operators do to a single status.
var actionTests = []test{
	{"a completed or discarded status that runs again is as good as new", func(s *suite) {
		for _, outcome := range []models.Outcome{models.OutcomeProcessed, models.OutcomeDiscarded} {
			id := string(outcome)
			s.accept(message(id, "mail"))
			claim := s.claim(noon, 1, "mail")[0]
			failed := settlement(claim)
			failed.ErrorCount, failed.LastError, failed.FailedAt, failed.Poisoned = 3, new("no such order"), noon, true
			s.settle(failed)
			s.end(s.status(id, "mail"), outcome, noon)
			before, later := s.status(id, "mail"), noon.Add(time.Hour)
			opened := s.rerun(before, later)
			require.Equal(s, &store.ChangedStatus{ID: before.ID, MessageID: id, HandlerKey: "mail"}, opened)
			after := s.status(id, "mail")
			require.Nil(s, after.CompletedAt)
			require.Empty(s, after.Outcome)
			require.Zero(s, after.ErrorCount+after.AbandonedCount+after.InterruptedCount)
			require.Equal(s, before.RequeuedCount+1, after.RequeuedCount)
			require.Equal(s, before.Version+1, after.Version)
			require.WithinDuration(s, later, *after.NextAttemptAt, 0)
			require.Nil(s, after.PoisonedAt)
			require.Equal(s, "no such order", *after.LastError)
			require.Equal(s, true, s.lastAttempt(after)["retried"])
			require.Empty(s, s.claim(noon, 1, "mail"), "not before its time")
			claims := s.claim(later, 1, "mail")
			require.Equal(s, []string{id + "/mail"}, claimed(claims))
			s.complete(later, claims...)
		}
	}},
	{"only a completed or discarded status at the version runs again", func(s *suite) {
		s.accept(message("m1", "mail"))
		require.Nil(s, s.rerun(s.status("m1", "mail"), noon), "it is pending")
		claim := s.claim(noon, 1, "mail")[0]
		require.Nil(s, s.rerun(s.status("m1", "mail"), noon), "it is processing")
		s.complete(noon, claim)
		row := s.status("m1", "mail")
		other := row
		other.Version--
		require.Nil(s, s.rerun(other, noon))
		other = row
		other.HandlerKey = "ship"
		require.Nil(s, s.rerun(other, noon))
		require.Equal(s, row, s.status("m1", "mail"))
		s.accept(message("m2", "mail"))
		s.end(s.status("m2", "mail"), models.OutcomeSuperseded, noon)
		require.Nil(s, s.rerun(s.status("m2", "mail"), noon), "it is superseded")
	}},
	{"one of several that run a status again at once wins", func(s *suite) {
		s.accept(message("m1", "mail"))
		s.complete(noon, s.claim(noon, 1, "mail")...)
		row := s.status("m1", "mail")
		won := make([]bool, 5)
		s.noErrors(racetest.Together(len(won), func(i int) error {
			opened, err := s.tryRerun(row, noon)
			won[i] = opened != nil
			return err
		}))
		n := 0
		for _, w := range won {
			if w {
				n++
			}
		}
		require.Equal(s, 1, n)
		require.Equal(s, row.Version+1, s.status("m1", "mail").Version)
	}},
	{"only an open status that is neither processing nor poisoned is rescheduled, and nothing else of it changes", func(s *suite) {
		s.accept(message("pending", "mail"), notBefore(noon.Add(time.Hour), message("later", "mail")),
			message("claimed", "mail"), message("poisoned", "mail"), message("completed", "mail"), message("stale", "mail"))
		for _, claim := range s.claim(noon, 10, "mail") {
			switch claim.MessageID {
			case "pending", "stale":
				s.settle(settlement(claim))
			case "poisoned":
				s.poison(claim)
			case "completed":
				s.complete(noon, claim)
			}
		}
		before := s.statuses()
		var refs []store.VersionedID
		for _, row := range before {
			version := int64(row.Version)
			if row.MessageID == "stale" {
				version++
			}
			refs = append(refs, store.VersionedID{ID: row.ID, Version: version})
		}
		at := noon.Add(24 * time.Hour)
		changed := s.reschedule(at, noon, refs...)
		require.ElementsMatch(s, []string{"pending", "later"}, changed)
		for i, row := range s.statuses() {
			if row.MessageID == "pending" || row.MessageID == "later" {
				require.Equal(s, at, row.NextAttemptAt.UTC())
				before[i].NextAttemptAt, before[i].Version = row.NextAttemptAt, before[i].Version+1
			}
			require.Equal(s, before[i], row)
		}
		for _, past := range []time.Time{{}, noon.Add(-time.Hour)} {
			require.Len(s, s.reschedule(past, noon, store.VersionedID{ID: refs[0].ID}), 1, "any version")
			s.dueAt(noon, "pending", "mail")
		}
		require.Empty(s, s.reschedule(at, noon, store.VersionedID{ID: uuid.NewString()}))
	}},
	{"a status that an operator runs now is due by the database's clock", func(s *suite) {
		if s.onSQLite("the operator's clock judges there") {
			return
		}
		s.byTheMachinesClock()
		ahead := time.Now().Add(time.Hour)
		s.acceptAt(time.Now(), notBefore(ahead.Add(time.Hour), message("m1", "mail")))
		s.reschedule(time.Time{}, ahead, store.VersionedID{ID: s.status("m1", "mail").ID})
		require.WithinDuration(s, time.Now(), *s.status("m1", "mail").NextAttemptAt, 30*time.Minute)
	}},
	{"a row that waits in its lane is rescheduled and goes on waiting", func(s *suite) {
		s.acceptLane("m1", "m2", "m3")
		head := s.heads(noon, 1)
		require.Empty(s, s.heads(noon, 1))
		require.Equal(s, []string{"m2", "m3"}, s.waiting())
		later := noon.Add(time.Hour)
		row := s.status("m2", "mail")
		require.Equal(s, []string{"m2"}, s.reschedule(later, noon, store.VersionedID{ID: row.ID, Version: int64(row.Version)}))
		require.Equal(s, []string{"m2", "m3"}, s.waiting())
		s.complete(noon, head...)
		require.Equal(s, []string{"mail"}, s.advance(ruleOf("mail"), head...), "it is first now")
		require.Empty(s, s.heads(later.Add(-time.Microsecond), 1))
		due, err := s.store.NextDue(s.ctx, []string{"mail"}, noon)
		require.NoError(s, err)
		require.Equal(s, later, due)
		require.Equal(s, []string{"m2/mail"}, claimed(s.heads(later, 1)))
	}},
	{"messages are locked in the order in which accepts lock them", func(s *suite) {
		if s.onSQLite("SQLite locks no rows") {
			return
		}
		s.accept(message("b", "mail"))
		s.accept(message("a", "mail"))
		s.accept(messages(500, "mail")...) // so that two of them are found by their numbers
		numbers, tx, operator := s.numbers("b", "a"), s.begin(), s.begin()
		pool, done := s.poolOf(operator), make(chan error, 1)
		table := "inbox_messages"
		if s.partitioned() {
			table = "inbox_message_ids"
		}
		s.lock(tx, table, "id = 'a'")
		go func() {
			locked, err := s.store.LockMessages(s.ctx, pool, numbers)
			if err == nil && len(locked) != len(numbers) {
				err = fmt.Errorf("locked %v of %v", locked, numbers)
			}
			done <- err
		}()
		s.waitForLock()
		s.lock(tx, table, "id = 'b'") // a deadlock if the operator has locked it first
		require.NoError(s, tx.Commit().Error)
		require.NoError(s, <-done)
	}},
	{"cleanup leaves a status alone that is being run again", func(s *suite) {
		s.accept(message("m1", "old"))
		s.end(s.status("m1", "old"), models.OutcomeProcessed, noon)
		for name, remove := range map[string]func() error{
			"cleanup": func() error {
				_, err := s.store.Cleanup(s.ctx, store.CleanupRequest{Cutoff: cutoff, Limit: 10})
				return err
			},
			"archive": func() error { return s.archiveAll(store.CleanupRequest{Cutoff: cutoff, Limit: 10}) },
		} {
			row := s.status("m1", "old")
			tx := s.begin()
			pool := s.poolOf(tx)
			locked, err := s.store.LockMessages(s.ctx, pool, []int64{row.MessageNumber})
			require.NoError(s, err)
			require.Len(s, locked, 1)
			removed := make(chan error, 1)
			if s.isServer() {
				removed <- remove() // passes over the locked message
				require.Equal(s, []string{"m1/old"}, pairs(s.statuses()), name)
			}
			opened, err := s.store.RerunStatus(s.ctx, pool, row.MessageNumber, "old", int64(row.Version), noon)
			require.NoError(s, err)
			require.NotNil(s, opened)
			if !s.isServer() {
				go func() { removed <- remove() }() // waits for the only writer
			}
			require.NoError(s, tx.Commit().Error)
			require.NoError(s, <-removed)
			require.NoError(s, remove(), "it is open now")
			require.Equal(s, []string{"m1/old"}, pairs(s.statuses()), name)
			s.end(s.status("m1", "old"), models.OutcomeProcessed, noon)
		}
	}},
	{"a status that archiving has read is not deleted if it runs again", func(s *suite) {
		s.accept(message("m1", "old"))
		s.end(s.status("m1", "old"), models.OutcomeProcessed, noon)
		loaded := s.load(store.CleanupRequest{Cutoff: cutoff, Limit: 10})
		require.NotNil(s, s.rerun(s.status("m1", "old"), noon))
		s.complete(noon, s.claim(noon, 1, "old")...)
		require.Zero(s, s.deleteExpired(loaded).Statuses)
		require.Equal(s, []string{"m1/old"}, pairs(s.statuses()))
	}},
	{"a row that runs again is next in its lane, after the row that runs", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m1", "m2", "m3", "m4")
		head := s.heads(noon, 1)
		require.Equal(s, []string{"m1/mail"}, claimed(head))
		s.complete(noon, head...)
		running := s.next(worker, ruleOf("mail"), head...).Claims
		require.Equal(s, []string{"m2/mail"}, claimed(running))
		require.Empty(s, s.heads(noon, 1), "m2 runs")
		require.NotNil(s, s.rerun(s.status("m1", "mail"), noon))
		require.Empty(s, s.heads(noon, 5), "m2 still runs")
		require.Empty(s, s.next(worker, ruleOf("mail"), head...))
		s.complete(noon, running...)
		again := s.next(worker, ruleOf("mail"), running...).Claims
		require.Equal(s, []string{"m1/mail"}, claimed(again), "before m3, which came later")
		require.Empty(s, s.heads(noon, 5))
		s.complete(noon, again...)
		require.Equal(s, []string{"m3/mail"}, claimed(s.next(worker, ruleOf("mail"), again...).Claims), "it is woken")
	}},
	{"a released claim is due at once, counts as abandoned, and its worker's results have no effect", func(s *suite) {
		worker := s.worker("mail")
		s.accept(message("m1", "mail"))
		old := s.claimAs(worker, noon, 1, "mail")[0]
		later := noon.Add(time.Minute)
		require.Nil(s, s.releaseClaim(store.VersionedID{ID: old.StatusID, Version: old.Version - 1}, later))
		require.Equal(s, &store.ChangedStatus{ID: old.StatusID, MessageID: "m1", HandlerKey: "mail"},
			s.releaseClaim(store.VersionedID{ID: old.StatusID, Version: old.Version}, later))
		row := s.status("m1", "mail")
		require.Nil(s, row.WorkerID)
		require.Nil(s, row.ProcessingStartedAt)
		require.Equal(s, old.AbandonedCount+1, row.AbandonedCount)
		require.Zero(s, row.ErrorCount)
		require.WithinDuration(s, later, *row.NextAttemptAt, 0)
		entry := s.lastAttempt(row)
		require.Equal(s, []any{worker, "an operator released its claim"}, []any{entry["worker_id"], entry["error"]})
		require.NotEmpty(s, entry["claimed_at"])
		require.Equal(s, []bool{false}, s.tryComplete(store.AwaitLocked, completion(old)))
		require.Equal(s, []bool{false}, s.trySettle(store.AwaitLocked, settlement(old)))
		tx := s.begin()
		require.False(s, s.completeTx(tx, old))
		require.NoError(s, tx.Rollback().Error)
		require.Nil(s, s.releaseClaim(store.VersionedID{ID: old.StatusID, Version: int64(row.Version)}, later), "it is free")
		again := s.claimAs(worker, later, 1, "mail")
		require.Equal(s, []string{"m1/mail"}, claimed(again))
		s.complete(later, again...)
		require.Nil(s, s.releaseClaim(store.VersionedID{ID: old.StatusID, Version: again[0].Version + 1}, later), "it has ended")
	}},
	{"releasing a claim does not wait for its handler's transaction", func(s *suite) {
		if !s.isPostgres() { // elsewhere operators wait
			return
		}
		s.accept(message("m1", "mail"))
		claim := s.claim(noon, 1, "mail")[0]
		ref := store.VersionedID{ID: claim.StatusID, Version: claim.Version}
		tx := s.begin()
		require.True(s, s.completeTx(tx, claim))
		require.Nil(s, s.releaseClaim(ref, noon))
		require.NoError(s, tx.Rollback().Error)
		require.NotNil(s, s.releaseClaim(ref, noon))
	}},
	{"a lane goes on at the row whose claim was released", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m1", "m2", "m3")
		head := s.heads(noon, 1)[0]
		require.Empty(s, s.heads(noon, 1))
		require.Equal(s, []string{"m2", "m3"}, s.waiting())
		require.NotNil(s, s.releaseClaim(store.VersionedID{ID: head.StatusID, Version: head.Version}, noon))
		require.False(s, s.status("m1", "mail").HoldsLane)
		again := s.heads(noon, 5)
		require.Equal(s, []string{"m1/mail"}, claimed(again))
		require.Equal(s, []bool{false}, s.tryComplete(store.AwaitLocked, completion(head)), "the old call")
		require.Empty(s, s.next(worker, ruleOf("mail"), head), "m1 runs again")
		s.complete(noon, again...)
		require.Equal(s, []string{"m2/mail"}, claimed(s.next(worker, ruleOf("mail"), again...).Claims))
	}},
}
