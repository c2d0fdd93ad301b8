package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
)

var settleTests = []test{
	{"failed: counted, with its text and its next attempt", func(s *suite) {
		s.accept(message("m1", "mail"))
		next, text := noon.Add(time.Minute), "boom"
		failed := settlement(s.claimAs(s.worker("mail"), noon, 1, "mail")[0])
		failed.ErrorCount, failed.AbandonedCount, failed.LastError, failed.NextAttemptAt = 4, 2, &text, &next
		s.settle(failed)
		row := s.status("m1", "mail")
		require.Equal(s, 4, row.ErrorCount)
		require.Equal(s, 2, row.AbandonedCount)
		require.Equal(s, text, *row.LastError)
		require.Equal(s, next, row.NextAttemptAt.UTC())
		require.Nil(s, row.ProcessingStartedAt)
		require.Nil(s, row.WorkerID)
		require.Nil(s, row.CompletedAt)
		require.EqualValues(s, 3, row.Version)
		claim := s.claim(next, 1, "mail")[0]
		require.Equal(s, 4, claim.ErrorCount)
		require.Equal(s, 2, claim.AbandonedCount)
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
	{"stale versions are left alone, the others settled", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"), message("m3", "mail"))
		claims := s.claim(noon, 10, "mail")
		s.complete(noon, claims[1])
		stale := settlement(claims[2])
		stale.Version--
		for _, settle := range []func() ([]bool, error){
			func() ([]bool, error) {
				return s.store.Settle(s.ctx, []store.Settlement{settlement(claims[0]), settlement(claims[1]), stale},
					store.AwaitLocked)
			},
		} {
			applied, err := settle()
			require.NoError(s, err)
			require.Equal(s, []bool{true, false, false}, applied)
		}
		require.NotNil(s, s.status("m2", "mail").CompletedAt)
		require.NotNil(s, s.status("m3", "mail").ProcessingStartedAt)
		applied, err := s.store.Settle(s.ctx, []store.Settlement{settlement(claims[0]), settlement(claims[2]), stale},
			store.SkipLocked)
		require.NoError(s, err)
		require.Equal(s, []bool{false, true, false}, applied)
	}},
	{"a completed row stays completed whatever version is claimed of it", func(s *suite) {
		s.accept(message("m1", "mail"))
		claim := s.claim(noon, 1, "mail")[0]
		s.complete(noon, claim)
		claim.Version++
		for _, settle := range []func([]store.Settlement) ([]bool, error){
			func(all []store.Settlement) ([]bool, error) { return s.store.Settle(s.ctx, all, store.AwaitLocked) },
			func(all []store.Settlement) ([]bool, error) { return s.store.Settle(s.ctx, all, store.SkipLocked) },
		} {
			applied, err := settle([]store.Settlement{settlement(claim)})
			require.NoError(s, err)
			require.Equal(s, []bool{false}, applied)
		}
	}},
	{"Settle that skips locked rows does not wait for a handler's transaction", func(s *suite) {
		if !s.postgres() {
			s.Log("SQLite locks no rows; writers wait for each other by busy_timeout")
			return
		}
		s.accept(message("m1", "mail"), message("m2", "mail"))
		claims := s.claim(noon, 10, "mail")
		tx := s.begin()
		applied, err := completeTx(s, tx, completion(claims[0]))
		require.NoError(s, err)
		require.True(s, applied)
		settled, err := s.store.Settle(s.ctx, []store.Settlement{settlement(claims[0]), settlement(claims[1])},
			store.SkipLocked)
		require.NoError(s, err)
		require.Equal(s, []bool{false, true}, settled)
		require.NoError(s, tx.Commit().Error)
		require.NotNil(s, s.status("m1", "mail").CompletedAt)
	}},
	{"no error text keeps a failure from being recorded", func(s *suite) {
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
