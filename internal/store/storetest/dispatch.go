package storetest

import (
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// dispatched asks for all of the message's statuses to be claimed.
func dispatched(m store.NewMessage) store.NewMessage {
	for i := range m.Handlers {
		m.Handlers[i].Claim = true
	}
	return m
}

func (s *suite) acceptFor(worker string, messages ...store.NewMessage) []store.Accepted {
	s.Helper()
	accepted, err := s.store.Accept(s.ctx, store.AcceptBatch{Messages: messages, Now: noon, Claimer: worker})
	require.NoError(s, err)
	require.Len(s, accepted, len(messages))
	return accepted
}

var dispatchTests = []test{
	{"a status inserted claimed is returned as a claim would return it", func(s *suite) {
		worker := s.worker("claimed", "handed")
		now := noon.Add(789 * time.Nanosecond) // finer than what is stored
		plain := message("plain", "claimed")
		empty := message("empty", "claimed")
		empty.Content, empty.Source, empty.SerializedProperties = nil, "", "{}"
		keyed := message("keyed", "claimed")
		keyed.OrderingKey, keyed.Content = []byte{}, []byte{0, 255}
		batch := []store.NewMessage{plain, empty, keyed}
		dispatched := map[string]store.Claim{}
		for i, m := range batch {
			m.Handlers = append(m.Handlers, store.NewStatus{HandlerKey: "handed", Claim: true})
			batch[i] = m
		}
		accepted, err := s.store.Accept(s.ctx, store.AcceptBatch{Messages: batch, Now: now, Claimer: worker})
		require.NoError(s, err)
		for i, a := range accepted {
			require.Equal(s, 2, a.StatusesAdded)
			require.Len(s, a.Claims, 1, batch[i].ID)
			dispatched[batch[i].ID] = a.Claims[0]
		}
		for _, claim := range s.claimAs(worker, noon.Add(time.Second), 10, "claimed") {
			got := dispatched[claim.MessageID]
			require.Equal(s, *claim.Message, *got.Message)
			require.Equal(s, "handed", got.HandlerKey)
			require.EqualValues(s, 1, got.Version)
			require.Equal(s, claim.CreatedAt, got.CreatedAt)
			require.Equal(s, claim.MessageBytes, got.MessageBytes)
			require.Equal(s, claim.Due, got.Due)
			require.Zero(s, got.ErrorCount+got.AbandonedCount+got.RequeuedCount)
			require.Nil(s, got.Lane)

			row := s.status(claim.MessageID, "handed")
			require.Equal(s, row.ID, got.StatusID)
			require.EqualValues(s, 1, row.Version)
			require.Equal(s, worker, *row.WorkerID)
			require.Equal(s, noon, row.ProcessingStartedAt.UTC())
			require.Equal(s, row.CreatedAt.UTC(), got.CreatedAt)
		}
		require.Empty(s, s.claimAs(worker, noon.Add(time.Second), 10, "handed"), "they are claimed")
		found := s.claimsOf(worker)
		require.Len(s, found, 6)
		s.complete(noon, dispatched["plain"], dispatched["empty"], dispatched["keyed"])
	}},
	{"a status inserted claimed by a clock that is ahead is returned with the time of its row", func(s *suite) {
		worker := s.worker("mail")
		ahead := time.Now().Add(time.Hour)
		accepted, err := s.store.Accept(s.ctx, store.AcceptBatch{Now: ahead, Claimer: worker,
			Messages: []store.NewMessage{dispatched(message("m1", "mail")), dispatched(message("m2", "mail"))}})
		require.NoError(s, err)
		for _, a := range accepted {
			require.Len(s, a.Claims, 1)
			created := s.status(a.Claims[0].MessageID, "mail").CreatedAt.UTC()
			require.Equal(s, created, a.Claims[0].CreatedAt)
			require.Equal(s, created, a.Claims[0].Due)
		}
	}},
	{"a status inserted claimed has its message's number in any order of IDs", func(s *suite) {
		worker := s.worker("mail")
		if s.isPostgres() { // a collation that differs from the order of bytes
			tables := []string{"inbox_messages"}
			if s.partitioned() {
				tables = append(tables, "inbox_message_ids")
				pool, err := s.db.DB()
				require.NoError(s, err)
				_, err = pool.ExecContext(s.ctx, `DROP VIEW inbox_messages`) // it fixes the columns' types
				require.NoError(s, err)
			}
			for _, table := range tables {
				require.NoError(s, s.db.Exec(`ALTER TABLE `+table+` ALTER COLUMN id TYPE varchar(200) COLLATE "und-x-icu",
					ALTER COLUMN namespace TYPE varchar(200) COLLATE "und-x-icu"`).Error)
			}
		}
		ids := []string{"z", "a", "B", "\u00e9", "e", "\uffff", "\U0001f600", "a b", "a,b", "{}", "10", "9", "_", "-", "\u00df", "ss"}
		known := dispatched(message("k", "mail"))
		var batch []store.NewMessage
		for _, namespace := range []string{"b", "", "\u00e4"} {
			for _, id := range ids {
				m := dispatched(message(id, "mail"))
				m.Namespace = namespace
				batch = append(batch, m)
			}
		}
		half := len(batch) / 2
		s.accept(known)
		for _, messages := range [][]store.NewMessage{batch[:half], append([]store.NewMessage{known}, batch[half:]...)} {
			for i, a := range s.acceptFor(worker, messages...) {
				if messages[i].ID == known.ID {
					require.Empty(s, a.Claims)
					continue
				}
				require.Len(s, a.Claims, 1, messages[i].ID)
				var id, namespace string
				require.NoError(s, s.db.Raw(`SELECT id, namespace FROM inbox_messages WHERE number = ?`, a.Claims[0].MessageNumber).
					Row().Scan(&id, &namespace))
				require.Equal(s, base.IdentityOf(&messages[i]), base.Identity{ID: id, Namespace: namespace})
				require.EqualValues(s, a.Claims[0].MessageNumber, a.Claims[0].Message.Number)
				require.Equal(s, messages[i].ID, a.Claims[0].MessageID)
			}
		}
	}},
	{"claims of one message share no memory", func(s *suite) {
		m := dispatched(message("m1", "mail", "stock"))
		m.OrderingKey = []byte("key")
		claims := s.acceptFor(s.worker("mail", "stock"), m)[0].Claims
		require.Len(s, claims, 2)
		want := string(claims[1].Message.Content)
		m.Content[0], m.OrderingKey[0] = 'x', 'x'
		claims[0].Message.Content[1] = 'x'
		require.Equal(s, want, string(claims[1].Message.Content))
		require.Equal(s, "key", string(claims[1].Message.OrderingKey))
	}},
	{"only statuses that ask for it are claimed, and none without a worker", func(s *suite) {
		m := message("m1", "mail", "stock")
		m.Handlers[1].Claim = true
		accepted := s.acceptFor(s.worker("mail", "stock"), m, message("m2", "mail"), dispatched(message("m3", "mail")))
		require.Equal(s, []string{"m1/stock"}, claimed(accepted[0].Claims))
		require.Empty(s, accepted[1].Claims)
		require.Equal(s, []string{"m3/mail"}, claimed(accepted[2].Claims))
		require.Empty(s, s.acceptFor("", dispatched(message("m4", "mail")))[0].Claims)
		require.Equal(s, []string{"m1/mail", "m2/mail", "m4/mail"}, claimed(s.claim(noon, 10, "mail", "stock")))
	}},
	{"nothing is claimed for a worker that is unknown, released or stopped", func(s *suite) {
		released, stopped := s.worker("mail"), s.worker("mail")
		require.NoError(s, s.store.MarkReleased(s.ctx, released, noon))
		require.NoError(s, s.store.StopWorker(s.ctx, stopped, noon))
		for i, worker := range []string{uuid.NewString(), released, stopped} {
			accepted := s.acceptFor(worker, dispatched(message(string(rune('a'+i)), "mail")))
			require.True(s, accepted[0].Inserted)
			require.Equal(s, 1, accepted[0].StatusesAdded)
			require.Empty(s, accepted[0].Claims)
		}
		require.Len(s, s.claimAs(s.worker("mail"), noon, 10, "mail"), 3)
	}},
	{"statuses added to a known message are not claimed", func(s *suite) {
		worker := s.worker("mail", "stock")
		s.accept(message("m2", "mail"))
		// m2 lacks a row, so the rows of m3, which comes after it, are inserted after that row.
		accepted := s.acceptFor(worker, dispatched(message("m1", "mail")), dispatched(message("m2", "mail", "stock")),
			dispatched(message("m3", "mail", "stock")))
		require.Equal(s, []string{"m1/mail"}, claimed(accepted[0].Claims))
		require.Equal(s, 1, accepted[1].StatusesAdded)
		require.Empty(s, accepted[1].Claims)
		require.Equal(s, 2, accepted[2].StatusesAdded)
		refs := s.claimsOf(worker)
		require.Len(s, refs, 1+len(accepted[2].Claims), "what is claimed is returned")
		require.Equal(s, []string{"m2/mail", "m1/mail", "m2/stock", "m3/mail", "m3/stock"}, pairs(s.statuses()),
			"in the order of acceptance")
	}},
	{"a worker marked released while it accepts leaves no claim unseen, and heartbeats do not wait", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		worker := s.worker("mail")
		release := s.hold(Event{Statement: "INSERT", Table: "inbox_handler_statuses"})
		s.releaseWorkerDuring(worker, release, func() (int, error) {
			accepted, err := s.store.Accept(s.ctx, store.AcceptBatch{
				Messages: []store.NewMessage{dispatched(message("m1", "mail"))}, Now: noon, Claimer: worker})
			if err != nil {
				return 0, err
			}
			return len(accepted[0].Claims), nil
		})
		lives, err := s.store.WorkerLives(s.ctx, worker)
		require.NoError(s, err)
		require.False(s, lives)
	}},
	{"an accept of a worker being released claims nothing", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		worker := s.worker("mail")
		marking := s.begin()
		require.NoError(s, s.server.LockWorker(marking, worker, false))
		require.Empty(s, s.acceptFor(worker, dispatched(message("m1", "mail")))[0].Claims)
		require.Nil(s, s.status("m1", "mail").ProcessingStartedAt)
		require.Empty(s, s.claimAs(worker, noon, 1, "mail"))
		require.NoError(s, marking.Commit().Error)
		require.Len(s, s.claimAs(worker, noon, 1, "mail"), 1)
	}},
}
