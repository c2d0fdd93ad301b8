package storetest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/fingerprint"
	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

var completeTests = []test{
	{"a completed status is ended, its history kept", func(s *suite) {
		s.accept(message("m1", "mail"))
		text := "no luck"
		failed := settlement(s.claim(noon, 1, "mail")[0])
		failed.ErrorCount, failed.AbandonedCount, failed.InterruptedCount, failed.LastError = 3, 2, 1, &text
		s.settle(failed)
		at := noon.Add(time.Minute)
		s.complete(at, s.claimAs(s.worker("mail"), noon, 1, "mail")...)
		row := s.status("m1", "mail")
		require.Equal(s, at, row.CompletedAt.UTC())
		require.Equal(s, models.OutcomeProcessed, row.Outcome)
		require.Nil(s, row.ProcessingStartedAt)
		require.Nil(s, row.WorkerID)
		require.Nil(s, row.NextAttemptAt)
		require.Zero(s, row.AbandonedCount+row.InterruptedCount)
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
	{"rows that moved since their claim are completed", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"))
		claims := s.claim(noon, 10, "mail")
		if s.isPostgres() {
			require.NoError(s, s.db.Exec(`VACUUM FULL inbox_handler_statuses`).Error)
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
	{"CompleteTx is committed or rolled back with the handler's transaction", func(s *suite) {
		s.accept(message("m1", "mail"))
		claim := s.claim(noon, 1, "mail")[0]
		tx := s.begin()
		require.True(s, s.completeTx(tx, claim))
		require.NoError(s, tx.Rollback().Error)
		require.Nil(s, s.status("m1", "mail").CompletedAt)

		tx = s.begin()
		require.True(s, s.completeTx(tx, claim))
		require.False(s, s.completeTx(tx, claim))
		require.NoError(s, tx.Commit().Error)
		row := s.status("m1", "mail")
		require.Equal(s, models.OutcomeProcessed, row.Outcome)
		require.Equal(s, noon, row.CompletedAt.UTC())
		require.EqualValues(s, 3, row.Version)
	}},
	{"CurrentTx reports what is still at its version, and CompleteTx decides", func(s *suite) {
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
		require.False(s, s.completeTx(tx, stale))
		require.NoError(s, tx.Commit().Error)
		require.Nil(s, s.status("m1", "mail").CompletedAt)
	}},
	{"one of several concurrent completions of a version is applied", func(s *suite) {
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
	{"States reports the outcome of a write", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"), message("m4", "mail"))
		worker := s.worker("mail")
		claims := s.claimAs(worker, noon, 3, "mail")
		s.complete(noon, claims[0])
		s.poison(claims[1])
		pending := s.status("m4", "mail")
		states, err := s.store.States(s.ctx, []store.Ref{claims[0].Ref, claims[1].Ref, claims[2].Ref, refOf(pending),
			{StatusID: uuid.NewString(), MessageNumber: pending.MessageNumber, HandlerKey: "other"}})
		require.NoError(s, err)
		require.Equal(s, map[string]store.State{
			claims[0].StatusID: {Version: 3, Completed: true},
			claims[1].StatusID: {Version: 3, Poisoned: true},
			claims[2].StatusID: {Version: 2, Processing: true},
			pending.ID:         {Version: 1},
		}, states)
	}},
	{"empty requests change nothing", func(s *suite) {
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

var settleTests = []test{
	{"failed: counted, with its text and its next attempt", func(s *suite) {
		s.accept(message("m1", "mail"))
		next, text := noon.Add(time.Minute), "boom"
		failed := settlement(s.claimAs(s.worker("mail"), noon, 1, "mail")[0])
		failed.ErrorCount, failed.AbandonedCount, failed.InterruptedCount = 4, 2, 7
		failed.LastError, failed.NextAttemptAt = &text, &next
		s.settle(failed)
		row := s.status("m1", "mail")
		require.Equal(s, 4, row.ErrorCount)
		require.Equal(s, 2, row.AbandonedCount)
		require.Equal(s, 7, row.InterruptedCount)
		require.Equal(s, text, *row.LastError)
		require.Equal(s, next, row.NextAttemptAt.UTC())
		require.Nil(s, row.ProcessingStartedAt)
		require.Nil(s, row.WorkerID)
		require.Nil(s, row.CompletedAt)
		require.EqualValues(s, 3, row.Version)
		claim := s.claim(next, 1, "mail")[0]
		require.Equal(s, 4, claim.ErrorCount)
		require.Equal(s, 2, claim.AbandonedCount)
		require.Equal(s, 7, claim.InterruptedCount)
		require.EqualValues(s, 4, claim.Version)
	}},
	{"poisoned: waits for no attempt", func(s *suite) {
		s.accept(message("m1", "mail"))
		next := noon.Add(time.Minute)
		poisoned := settlement(s.claim(noon, 1, "mail")[0])
		poisoned.Poisoned, poisoned.NextAttemptAt = true, &next
		s.settle(poisoned)
		row := s.status("m1", "mail")
		require.True(s, row.IsPoisoned)
		require.Nil(s, row.NextAttemptAt)
		require.Empty(s, s.claim(noon.Add(time.Hour), 1, "mail"))
	}},
	{"released: due at once, the last error kept", func(s *suite) {
		s.accept(message("m1", "mail"))
		text := "boom"
		failed := settlement(s.claim(noon, 1, "mail")[0])
		failed.LastError = &text
		s.settle(failed)
		s.settle(settlement(s.claim(noon, 1, "mail")[0]))
		row := s.status("m1", "mail")
		require.Equal(s, text, *row.LastError)
		require.Nil(s, row.NextAttemptAt)
		require.Len(s, s.claim(noon, 1, "mail"), 1)
	}},
	{"the fingerprint is stored, replaced and kept with the error text", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "ship"))
		of := map[string]store.Settlement{}
		fail := func(texts map[string]string) {
			var all []store.Settlement
			for _, claim := range s.claim(noon, 10, "mail", "ship") {
				back := settlement(claim)
				if text, ok := texts[claim.MessageID]; ok {
					back.LastError, back.Poisoned = &text, claim.MessageID == "m2"
				}
				of[claim.MessageID] = back
				all = append(all, back)
			}
			s.settle(all...)
		}
		named := func(id string) string {
			row := s.status(id, of[id].HandlerKey)
			require.NotNil(s, row.Fingerprint, id)
			require.Equal(s, fingerprint.Of(row.HandlerKey, *row.LastError), *row.Fingerprint, id)
			return *row.Fingerprint
		}
		fail(nil)
		require.Nil(s, s.status("m1", "mail").Fingerprint, "it has not failed")
		fail(map[string]string{"m1": "order 1 not found", "m2": "order 2 not found", "m3": "order 3 not found"})
		first := named("m1")
		require.Equal(s, first, named("m2"))
		require.NotEqual(s, first, named("m3"), "another handler")
		fail(nil) // released
		require.Equal(s, first, named("m1"))
		fail(map[string]string{"m1": "timeout\x00" + strings.Repeat("é", 3000)}) // cleansed and cut
		require.NotEqual(s, first, named("m1"))
		fail(map[string]string{"m1": ""})
		second := named("m1")
		s.complete(noon, s.claim(noon, 1, "mail")...)
		require.Equal(s, second, named("m1"), "history")
		row := s.status("m2", "mail")
		s.settle(store.Settlement{StatusID: row.ID, HandlerKey: row.HandlerKey, Version: int64(row.Version)})
		require.Equal(s, first, named("m2"), "retried, its text stays, too")
	}},
	{"attempts that failed are kept with their claim, the last ten of them, and the time of poisoning", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"))
		worker := s.worker("mail")
		attempts := func(id string) (all []map[string]any) {
			if kept := s.status(id, "mail").Attempts; kept != nil {
				require.NoError(s, json.Unmarshal([]byte(*kept), &all))
			}
			return all
		}
		at := func(text any) time.Time {
			var stamp store.Stamp
			require.NoError(s, stamp.Scan(text))
			return stamp.Time
		}
		for i := range 12 {
			claimed := noon.Add(time.Duration(i) * time.Minute)
			failed := settlement(s.claimAs(worker, claimed, 1, "mail")[0])
			text := fmt.Sprintf("boom %d\x00\"%s", i, strings.Repeat("é", 400))
			failed.LastError, failed.FailedAt, failed.Poisoned = &text, claimed.Add(time.Second), i == 11
			s.settle(failed)
			require.Len(s, attempts("m1"), min(i+1, 10))
			if i < 11 {
				require.Nil(s, s.status("m1", "mail").PoisonedAt)
			}
		}
		require.Nil(s, s.status("m2", "mail").Attempts)
		kept := attempts("m1")
		for i, attempt := range kept {
			claimed := noon.Add(time.Duration(i+2) * time.Minute)
			require.Equal(s, claimed, at(attempt["claimed_at"]))
			require.Equal(s, claimed.Add(time.Second), at(attempt["at"]))
			require.Equal(s, worker, attempt["worker_id"])
			require.Equal(s, i == 9, attempt["poisoned"])
			text := attempt["error"].(string)
			require.True(s, strings.HasPrefix(text, fmt.Sprintf("boom %d\uFFFD\"é", i+2)), text)
			require.Equal(s, 300, utf8.RuneCountInString(text))
		}
		row := s.status("m1", "mail")
		require.Equal(s, noon.Add(11*time.Minute+time.Second), row.PoisonedAt.UTC())

		released := settlement(s.claimAs(worker, noon, 1, "mail")[0])
		text := "the database is gone"
		released.LastError = &text
		s.settle(released)
		require.Empty(s, attempts("m2"), "released, not failed")
		vanished := settlement(s.claimAs(worker, noon, 1, "mail")[0])
		vanished.FailedAt = noon.Add(time.Minute)
		s.settle(vanished)
		require.Len(s, attempts("m2"), 1)
		require.Nil(s, attempts("m2")[0]["error"])
		s.complete(noon, s.claimAs(worker, noon, 1, "mail")...)
		require.Len(s, attempts("m2"), 1, "history")
	}},
	{"stale versions stay unchanged, the others are settled", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"))
		claims := s.claim(noon, 10, "mail")
		s.complete(noon, claims[1])
		stale := settlement(claims[2])
		stale.Version--
		require.Equal(s, []bool{true, false, false},
			s.trySettle(store.AwaitLocked, settlement(claims[0]), settlement(claims[1]), stale))
		require.NotNil(s, s.status("m2", "mail").CompletedAt)
		require.NotNil(s, s.status("m3", "mail").ProcessingStartedAt)
		applied := s.trySettle(store.SkipLocked, settlement(claims[0]), settlement(claims[2]), stale)
		require.Equal(s, []bool{false, true, false}, applied)
	}},
	{"a completed row stays completed for any version in a settlement", func(s *suite) {
		s.accept(message("m1", "mail"))
		claim := s.claim(noon, 1, "mail")[0]
		s.complete(noon, claim)
		claim.Version++
		for _, mode := range []store.Locked{store.AwaitLocked, store.SkipLocked} {
			require.Equal(s, []bool{false}, s.trySettle(mode, settlement(claim)))
		}
	}},
	{"Settle that skips locked rows does not wait for a handler's transaction", func(s *suite) {
		if s.onSQLite("SQLite locks no rows; writers wait for each other by busy_timeout") {
			return
		}
		s.accept(message("m1", "mail"), message("m2", "mail"))
		claims := s.claim(noon, 10, "mail")
		tx := s.begin()
		require.True(s, s.completeTx(tx, claims[0]))
		settled := s.trySettle(store.SkipLocked, settlement(claims[0]), settlement(claims[1]))
		require.Equal(s, []bool{false, true}, settled)
		require.NoError(s, tx.Commit().Error)
		require.NotNil(s, s.status("m1", "mail").CompletedAt)
	}},
	{"a failure is recorded with any error text", func(s *suite) {
		texts := map[string]string{
			"nul": "a\x00b", "utf8": "a\xff\xfeb", "long": string(make([]rune, 5000)), "cut": "é" + string(make([]byte, 1999)) +
				"日本",
			"huge": string(make([]byte, 1<<20)),
		}
		var batch []store.NewMessage
		for id := range texts {
			batch = append(batch, message(id, "mail"))
		}
		s.accept(batch...)
		var settlements []store.Settlement
		for _, claim := range s.claim(noon, 10, "mail") {
			failed := settlement(claim)
			text := texts[claim.MessageID]
			failed.LastError = &text
			settlements = append(settlements, failed)
		}
		s.settle(settlements...)
		for id, text := range texts {
			require.Equal(s, store.SanitizeError(text), *s.status(id, "mail").LastError, id)
		}
	}},
}
