package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
)

func (s *suite) noErrors(errs []error) {
	s.Helper()
	for _, err := range errs {
		require.NoError(s, err)
	}
}

var acceptRaceTests = []test{
	{"duplicates of one message leave one row per handler", func(s *suite) {
		accepted := make([]store.Accepted, 50)
		s.noErrors(racetest.Together(50, func(i int) error {
			results, err := s.store.Accept(s.ctx, store.AcceptBatch{Messages: []store.NewMessage{message("m1", "mail", "stock")},
				Now: noon})
			if err == nil {
				accepted[i] = results[0]
			}
			return err
		}))
		inserted, added := 0, 0
		for _, result := range accepted {
			if result.Inserted {
				inserted++
			}
			added += result.StatusesAdded
		}
		require.Equal(s, 1, inserted)
		require.Equal(s, 2, added)
		require.Equal(s, []string{"m1/mail", "m1/stock"}, pairs(s.statuses()))
	}},
	{"overlapping batches in different orders neither deadlock nor lose", func(s *suite) {
		const messages = 40
		// Half of them are already known and get a handler's row each.
		for i := range messages / 2 {
			s.accept(message(fmt.Sprintf("m%02d", 2*i), "old"))
		}
		var lock sync.Mutex
		inserted, added := 0, 0
		s.noErrors(racetest.Together(50, func(worker int) error {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for range 4 {
				var batch store.AcceptBatch
				batch.Now = noon
				for _, i := range random.Perm(messages)[:messages/2] {
					batch.Messages = append(batch.Messages, message(fmt.Sprintf("m%02d", i), "mail", "stock"))
				}
				results, err := s.store.Accept(s.ctx, batch)
				if err != nil {
					return err
				}
				lock.Lock()
				for _, result := range results {
					if result.Inserted {
						inserted++
					}
					added += result.StatusesAdded
				}
				lock.Unlock()
			}
			return nil
		}))
		require.Len(s, s.messageIDs(), messages)
		require.Equal(s, messages/2, inserted)
		require.Equal(s, 2*messages, added)
		require.Len(s, s.statuses(), 2*messages+messages/2)
	}},
	{"a rolling rename leaves one row, not two", func(s *suite) {
		s.accept(message("m1"))
		s.noErrors(racetest.Together(20, func(i int) error {
			m := message("m1")
			m.Handlers = []store.NewStatus{{HandlerKey: "new", LegacyKeys: []string{"old"}}}
			if i%2 == 0 { // a peer that already knows the handler under the other key
				m.Handlers = []store.NewStatus{{HandlerKey: "old", LegacyKeys: []string{"new"}}}
			}
			_, err := s.store.Accept(s.ctx, store.AcceptBatch{Messages: []store.NewMessage{m}, Now: noon})
			return err
		}))
		require.Len(s, s.statuses(), 1)
	}},
	{"a rolling rename leaves one row where only the new program knows of it", func(s *suite) {
		s.accept(message("known"))
		s.noErrors(racetest.Together(20, func(i int) error {
			known, fresh := message("known", "old"), message("fresh", "old")
			if i%2 == 0 {
				renamed := []store.NewStatus{{HandlerKey: "new", LegacyKeys: []string{"old"}}}
				known.Handlers, fresh.Handlers = renamed, renamed
				if _, err := s.store.DeclareLegacyKeys(s.ctx, nil, map[string][]string{"new": {"old"}}, noon); err != nil {
					return err
				}
			}
			_, err := s.store.Accept(s.ctx, store.AcceptBatch{Messages: []store.NewMessage{known, fresh}, Now: noon})
			return err
		}))
		require.Len(s, s.statuses(), 2)
	}},
	{"contents of batches accepted at once do not mix", func(s *suite) {
		var lock sync.Mutex
		var given []store.NewMessage
		s.noErrors(racetest.Together(8, func(worker int) error {
			random := rand.New(rand.NewPCG(2, uint64(worker)))
			for round := range 6 {
				batch := store.AcceptBatch{Now: noon}
				for i := range 20 {
					m := message(fmt.Sprintf("%d-%d-%d", worker, round, i), "mail")
					m.Content = make([]byte, random.IntN(10<<10))
					for at := range m.Content {
						m.Content[at] = byte(random.Uint32())
					}
					batch.Messages = append(batch.Messages, m)
				}
				ctx, cancel := context.WithCancel(s.ctx)
				if round%3 == 2 { // this accept is cancelled at some point
					timer := time.AfterFunc(time.Duration(random.Int64N(int64(3*time.Millisecond))), cancel)
					defer timer.Stop()
				}
				_, err := s.store.Accept(ctx, batch)
				gaveUp := ctx.Err() != nil
				cancel()
				if err != nil && !gaveUp {
					return err
				}
				lock.Lock()
				given = append(given, batch.Messages...)
				lock.Unlock()
			}
			return nil
		}))
		expected := s.contentsOf(given)
		stored := s.contents()
		require.GreaterOrEqual(s, len(stored), 8*4*20)
		for id, content := range stored {
			require.True(s, expected[id] == content, id)
		}
	}},
	{"a message deleted during an accept is inserted again, in order", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		s.accept(message("gone", "h"), message("known", "h"))
		// The accept has found the message, and waits to lock it.
		for i, batch := range [][]store.NewMessage{
			{message("gone", "h", "i"), message("new0", "h")},
			{message("new1", "h"), message("gone", "h", "i"), message("known", "late"), message("new2", "h")},
			{message("gone", "h", "i")},
		} {
			tx := s.begin()
			s.lock(tx, "inbox_messages", "id = 'gone'")
			accepted := s.acceptBehind(func() *gorm.DB {
				if cleaned := tx.Exec(`DELETE FROM inbox_messages WHERE id = 'gone'`); cleaned.Error != nil {
					return cleaned
				}
				return tx.Commit()
			}, batch...)
			var expected []string
			for j, m := range batch {
				require.Equal(s, store.Accepted{Inserted: m.ID != "known", StatusesAdded: len(m.Handlers)}, accepted[j], m.ID)
				for _, h := range m.Handlers {
					expected = append(expected, m.ID+"/"+h.HandlerKey)
				}
			}
			found := pairs(s.statuses())
			require.Equal(s, expected, found[len(found)-len(expected):], "batch %d, in the order of acceptance", i)
		}
		var strays int64
		require.NoError(s,
			s.db.Raw(`SELECT count(*) FROM inbox_handler_statuses s JOIN inbox_messages m ON m.id = s.message_id WHERE m.number <> s.message_number`).Scan(&strays).Error)
		require.Zero(s, strays)
	}},
	{"an accept does not wait for the same ID in another namespace", func(s *suite) {
		if s.onSQLite("SQLite has one writer") {
			return
		}
		s.accept(message("m1", "mail"))
		tx, other := s.begin(), message("m1", "mail")
		other.Namespace = "billing"
		s.acceptTx(tx, noon, other)
		soon, cancel := context.WithTimeout(s.ctx, patience/2)
		defer cancel()
		accepted, err := s.store.Accept(soon, store.AcceptBatch{
			Messages: []store.NewMessage{message("m1", "mail", "stock"), message("m2", "mail")}, Now: noon})
		require.NoError(s, err)
		require.Equal(s, []store.Accepted{{StatusesAdded: 1}, {Inserted: true, StatusesAdded: 1}}, accepted)
	}},
	{"after a rollback, an accept that waited inserts the message", func(s *suite) {
		tx := s.begin()
		s.acceptTx(tx, noon, message("m1", "mail"))
		accepted := s.acceptBehind(tx.Rollback, message("m1", "mail"))
		require.Equal(s, []store.Accepted{{Inserted: true, StatusesAdded: 1}}, accepted)
		require.Equal(s, []string{"m1/mail"}, pairs(s.statuses()))
	}},
	{"an accept that a deadlock aborts is retried", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules deadlocks out") {
			return
		}
		s.accept(message("a", "old"), message("b", "old"))
		tx := s.begin()
		require.NoError(s, s.server.Survive(tx), "the accept is the victim")
		s.lock(tx, "inbox_messages", "id = 'b'")
		accepted := s.acceptBehind(func() *gorm.DB {
			// The accept holds a and waits for b, so wait for a in turn. This statement continues
			// once the server has ended the accept's transaction.
			s.lock(tx, "inbox_messages", "id = 'a'")
			return tx.Commit()
		}, message("a", "old", "new"), message("b", "old", "new"), message("c", "new"))
		require.Equal(s, []store.Accepted{{StatusesAdded: 1}, {StatusesAdded: 1}, {Inserted: true, StatusesAdded: 1}},
			accepted)
		require.Equal(s, []string{"a/old", "b/old", "a/new", "b/new", "c/new"}, pairs(s.statuses()))
	}},
	{"a statement outside of transactions that a deadlock aborts is retried", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules deadlocks out") {
			return
		}
		for _, name := range []string{"a", "b"} {
			_, err := s.store.AcquireLease(s.ctx, name, uuid.NewString(), time.Minute, noon)
			require.NoError(s, err)
		}
		tx := s.begin()
		require.NoError(s, s.server.Survive(tx))
		s.lock(tx, "inbox_locks", "name = 'b'")
		pool, done := store.NewSingles(s.db).Pool(s.ctx), make(chan error, 1)
		go func() {
			_, err := store.Exec(s.ctx, pool, `DELETE FROM inbox_locks WHERE name IN ('a', 'b')`)
			done <- err
		}()
		s.waitForLock()
		s.lock(tx, "inbox_locks", "name = 'a'")
		require.NoError(s, tx.Rollback().Error)
		require.NoError(s, <-done)
		require.Empty(s, s.leaseOwner("a"))
		require.Empty(s, s.leaseOwner("b"))
	}},
}
