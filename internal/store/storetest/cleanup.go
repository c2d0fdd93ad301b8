package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// cutoff is an hour after noon: what was completed at noon is old.
var cutoff = noon.Add(time.Hour)

// cleanAll walks until done and returns the sums.
func (s *suite) cleanAll(request store.CleanupRequest) (sum store.CleanupResult) {
	s.Helper()
	for range 1000 {
		result, err := s.store.Cleanup(s.ctx, request)
		require.NoError(s, err)
		sum.Messages += result.Messages
		sum.Statuses += result.Statuses
		if sum.Done = result.Done; sum.Done {
			return sum
		}
		require.NotEqual(s, request.After, result.Next, "the walk must move on")
		request.After = result.Next
	}
	require.Fail(s, "the walk does not end")
	return sum
}

// bring puts one message's status, of the handler of that name, into a state.
func (s *suite) bring(state string, messageID string) {
	s.Helper()
	row := s.status(messageID, state)
	at, outcome := noon, models.OutcomeProcessed
	switch state {
	case "pending":
		return
	case "processing":
		require.Len(s, s.claim(noon, 1, state), 1)
		return
	case "poisoned":
		s.settle(store.Settlement{StatusID: row.ID, Version: int64(row.Version), Poisoned: true})
		return
	case "snoozed":
		next := noon.Add(-time.Hour)
		s.settle(store.Settlement{StatusID: row.ID, Version: int64(row.Version), NextAttemptAt: &next})
		return
	case "young":
		at = cutoff
	case "discarded":
		outcome = models.OutcomeDiscarded
	case "superseded":
		outcome = models.OutcomeSuperseded
	}
	s.end(row, outcome, at)
}

var cleanupTests = []test{
	{"cleanup of every mixture of states leaves exactly what must stay", func(s *suite) {
		stays := []string{"pending", "processing", "poisoned", "snoozed", "young"}
		goes := []string{"old", "discarded", "superseded"}
		mixtures := [][]string{{}}
		for i, state := range append(slices.Clone(stays), goes...) {
			mixtures = append(mixtures, []string{state})
			for _, other := range append(slices.Clone(stays), goes...)[i+1:] {
				mixtures = append(mixtures, []string{state, other})
			}
		}
		var messages, statuses []string
		var gone store.CleanupResult
		for i, mixture := range mixtures {
			id := fmt.Sprintf("m%02d", i)
			s.accept(message(id, mixture...))
			kept := false
			for _, state := range mixture {
				s.bring(state, id)
				if slices.Contains(stays, state) {
					kept = true
					statuses = append(statuses, id+"/"+state)
				} else {
					gone.Statuses++
				}
			}
			if kept {
				messages = append(messages, id)
			} else {
				gone.Messages++
			}
		}
		gone.Done = true
		require.Equal(s, gone, s.cleanAll(store.CleanupRequest{Cutoff: cutoff, Limit: 7}))
		require.Equal(s, messages, s.messageIDs())
		require.ElementsMatch(s, statuses, pairs(s.statuses()))
		require.Equal(s, store.CleanupResult{Done: true}, s.cleanAll(store.CleanupRequest{Cutoff: cutoff, Limit: 7}))
	}},
	{"a message not older than the cutoff stays, even without statuses", func(s *suite) {
		s.acceptAt(cutoff, message("young"))
		s.acceptAt(cutoff.Add(-time.Microsecond), message("old"))
		require.Equal(s, store.CleanupResult{Messages: 1, Done: true},
			s.cleanAll(store.CleanupRequest{Cutoff: cutoff, Limit: 10}))
		require.Equal(s, []string{"young"}, s.messageIDs())
	}},
	{"batches walk in order, read no message twice and report the end", func(s *suite) {
		for i, id := range []string{"c", "a", "b", "e", "d"} {
			s.acceptAt(noon.Add(time.Duration(i/2)*time.Second), message(id, "pending"))
		}
		request := store.CleanupRequest{Cutoff: cutoff, Limit: 2}
		for _, last := range []string{"a", "e", "d"} {
			result, err := s.store.Cleanup(s.ctx, request)
			require.NoError(s, err)
			require.Zero(s, result.Messages+result.Statuses)
			require.Equal(s, s.numbers(last)[0], result.Next.MessageNumber)
			require.Equal(s, last == "d", result.Done)
			request.After = result.Next
		}
		result, err := s.store.Cleanup(s.ctx, request)
		require.NoError(s, err)
		require.Equal(s, store.CleanupResult{Next: request.After, Done: true}, result)
	}},
	{"a handler's own cutoff replaces the common one", func(s *suite) {
		s.accept(message("m1", "quick", "slow", "usual"), message("m2", "quick"), message("m3", "slow"),
			message("m4", "usual"))
		s.complete(noon.Add(30*time.Minute), s.claim(noon, 10, "quick", "slow", "usual")...)
		request := store.CleanupRequest{
			Cutoff: noon.Add(10 * time.Minute), Limit: 10,
			HandlerCutoffs: []store.HandlerCutoff{{HandlerKey: "quick", Cutoff: cutoff}, {HandlerKey: "slow"}},
		}
		require.Equal(s, store.CleanupResult{Messages: 1, Statuses: 2, Done: true}, s.cleanAll(request))
		require.ElementsMatch(s, []string{"m1/slow", "m1/usual", "m3/slow", "m4/usual"}, pairs(s.statuses()))
		request.Cutoff = cutoff
		require.Equal(s, store.CleanupResult{Messages: 1, Statuses: 2, Done: true}, s.cleanAll(request))
		require.Equal(s, []string{"m1", "m3"}, s.messageIDs())
		request.HandlerCutoffs, request.Cutoff = request.HandlerCutoffs[1:], time.Time{}
		require.Equal(s, store.CleanupResult{Done: true}, s.cleanAll(request), "no cutoff keeps all")
	}},
	{"a walk begins and ends at the requested times of receipt", func(s *suite) {
		for i, id := range []string{"a", "b", "c", "d"} {
			s.acceptAt(noon.Add(time.Duration(i)*time.Minute), message(id, "old"))
			s.bring("old", id)
		}
		request := store.CleanupRequest{Cutoff: cutoff, Limit: 1,
			After: store.CleanupCursor{ReceivedAt: noon.Add(time.Minute)}, Until: noon.Add(3 * time.Minute)}
		require.Equal(s, store.CleanupResult{Messages: 2, Statuses: 2, Done: true}, s.cleanAll(request))
		require.Equal(s, []string{"a", "d"}, s.messageIDs())
		request.After, request.Until, request.Cutoff = store.CleanupCursor{}, cutoff.Add(time.Hour), noon.Add(3*time.Minute)
		found, err := s.store.Expired(s.ctx, request)
		require.NoError(s, err)
		require.Equal(s, s.numbers("a"), found.MessageNumbers, "no walk goes beyond the latest cutoff")
	}},
	{"messages of which nothing is deleted are not written", func(s *suite) {
		s.accept(message("m1", "pending"), message("m2", "old", "pending"))
		s.bring("old", "m2")
		request := store.CleanupRequest{Cutoff: cutoff, Limit: 10}
		require.EqualValues(s, 1, s.cleanAll(request).Statuses)
		if !s.isPostgres() {
			s.Log("only a row of PostgreSQL shows that it was locked")
			return
		}
		locks := func() (xmax []string) {
			require.NoError(s, s.db.Raw(`SELECT xmax::text FROM inbox_messages ORDER BY id`).Scan(&xmax).Error)
			return xmax
		}
		before := locks()
		s.cleanAll(request)
		require.Equal(s, before, locks())
	}},
	{"foreign keys switched off leave no orphans", func(s *suite) {
		s.accept(message("m1", "old"))
		s.bring("old", "m1")
		if s.isServer() {
			s.Log("a server's foreign key is always on")
		} else {
			require.NoError(s, s.db.Exec(`PRAGMA foreign_keys = off`).Error)
		}
		require.Equal(s, store.CleanupResult{Messages: 1, Statuses: 1, Done: true},
			s.cleanAll(store.CleanupRequest{Cutoff: cutoff, Limit: 10}))
		require.Empty(s, s.statuses())
	}},
}

var cleanupRaceTests = []test{
	{"a message that an open accept has locked stays, with its new status", func(s *suite) {
		s.accept(message("m1", "old"), message("m2", "old"))
		s.bring("old", "m1")
		s.bring("old", "m2")
		s.deleteBesideAccept(func() error {
			_, err := s.store.Cleanup(s.ctx, store.CleanupRequest{Cutoff: cutoff, Limit: 10})
			return err
		})
	}},
	{"an accept that only locked a known message keeps it too", func(s *suite) {
		s.accept(message("m1", "old"))
		s.bring("old", "m1")
		tx := s.begin()
		s.acceptTx(tx, cutoff, message("m1", "old"))
		if s.isServer() {
			require.Equal(s, store.CleanupResult{Done: true}, s.cleanAll(store.CleanupRequest{Cutoff: cutoff, Limit: 10}))
		}
		require.NoError(s, tx.Commit().Error)
		require.Equal(s, store.CleanupResult{Messages: 1, Statuses: 1, Done: true},
			s.cleanAll(store.CleanupRequest{Cutoff: cutoff, Limit: 10}))
	}},
	{"a message deleted while an accept waits for it is inserted again", func(s *suite) {
		s.accept(message("m1", "old"), message("m2", "old"))
		tx := s.begin()
		require.NoError(s, tx.Exec(`DELETE FROM inbox_handler_statuses WHERE message_id = 'm1'`).Error)
		require.NoError(s, tx.Exec(`DELETE FROM inbox_messages WHERE id = 'm1'`).Error)
		accepted := s.acceptBehind(tx.Commit, message("m2", "old", "new"), message("m1", "old", "new"), message("m3", "old"))
		require.Equal(s, []store.Accepted{{StatusesAdded: 1}, {Inserted: true, StatusesAdded: 2},
			{Inserted: true, StatusesAdded: 1}}, accepted)
		require.Equal(s, []string{"m2/old", "m2/new", "m1/old", "m1/new", "m3/old"}, pairs(s.statuses()))
	}},
	{"a message that cleanup locked and kept is a duplicate", func(s *suite) {
		s.accept(message("m1", "old"))
		tx := s.begin()
		if s.isServer() {
			s.lock(tx, "inbox_messages", "true")
		} else {
			require.NoError(s, tx.Exec(`UPDATE inbox_messages SET id = id`).Error)
		}
		accepted := s.acceptBehind(tx.Commit, message("m1", "old", "new"))
		require.Equal(s, []store.Accepted{{StatusesAdded: 1}}, accepted)
		require.Equal(s, []string{"m1/old", "m1/new"}, pairs(s.statuses()))
	}},
	{"concurrent accepts and cleanups lose no status and leave no orphan", func(s *suite) {
		// Each message's handler "old" is completed and old, so cleanup may delete its status at
		// any moment. "late" must survive wherever it was added.
		const messages = 30
		var batch []store.NewMessage
		var expected []string
		for i := range messages {
			batch = append(batch, message(fmt.Sprintf("m%02d", i), "old"))
			expected = append(expected, fmt.Sprintf("m%02d/late", i))
		}
		s.accept(batch...)
		s.complete(noon, s.claim(noon, messages, "old")...)
		s.noErrors(racetest.Together(10, func(i int) error {
			if i%2 == 0 {
				request := store.CleanupRequest{Cutoff: cutoff, Limit: messages}
				for n := range 10 {
					var err error
					if (n+i/2)%2 == 0 {
						err = s.archiveAll(request)
					} else {
						_, err = s.store.Cleanup(s.ctx, request)
					}
					if err != nil {
						return err
					}
				}
				return nil
			}
			for n := range messages {
				m := message(fmt.Sprintf("m%02d", (n+i)%messages), "late")
				if _, err := s.store.Accept(s.ctx, store.AcceptBatch{Messages: []store.NewMessage{m}, Now: cutoff}); err != nil {
					return err
				}
			}
			return nil
		}))
		s.cleanAll(store.CleanupRequest{Cutoff: cutoff, Limit: messages})
		require.ElementsMatch(s, expected, pairs(s.statuses()))
		require.Len(s, s.messageIDs(), messages)
	}},
}

// archiveAll is cleanAll that first loads and then deletes.
func (s *suite) archiveAll(request store.CleanupRequest) error {
	found, err := s.store.Expired(s.ctx, request)
	if err != nil || len(found.MessageNumbers) == 0 {
		return err
	}
	loaded, _, err := s.store.LoadExpired(s.ctx, request, found.MessageNumbers, 1<<30)
	if err != nil {
		return err
	}
	_, err = s.store.DeleteExpired(s.ctx, loaded)
	return err
}

// deleteBesideAccept deletes what is old while an open transaction adds a status to m1, which must
// stay then.
func (s *suite) deleteBesideAccept(remove func() error) {
	s.Helper()
	tx := s.begin()
	require.Equal(s, []store.Accepted{{StatusesAdded: 1}}, s.acceptTx(tx, cutoff, message("m1", "old", "late")))
	removed := make(chan error, 1)
	if s.isServer() {
		removed <- remove() // does not wait for the accept
		require.Equal(s, []string{"m1"}, s.messageIDs())
		require.Equal(s, []string{"m1/old"}, pairs(s.statuses()))
	} else {
		go func() { removed <- remove() }() // waits for the accept
	}
	require.NoError(s, tx.Commit().Error)
	require.NoError(s, <-removed)
	require.Equal(s, []string{"m1"}, s.messageIDs())
	require.Contains(s, pairs(s.statuses()), "m1/late")
}

// acceptBehind starts an accept that must wait for an open transaction, ends that transaction, and
// returns the accept's results.
func (s *suite) acceptBehind(end func() *gorm.DB, messages ...store.NewMessage) []store.Accepted {
	s.Helper()
	type outcome struct {
		accepted []store.Accepted
		err      error
	}
	done := make(chan outcome, 1)
	go func() {
		accepted, err := s.store.Accept(s.ctx, store.AcceptBatch{Messages: messages, Now: cutoff})
		done <- outcome{accepted, err}
	}()
	s.waitForLock()
	require.NoError(s, end().Error)
	result := <-done
	require.NoError(s, result.err)
	return result.accepted
}
