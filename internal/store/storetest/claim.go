package storetest

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

var claimTests = []test{
	{"a due status comes with its message, marked as processing", func(s *suite) {
		m := message("m1", "mail")
		m.OrderingKey = []byte{1, 0}
		s.accept(m)
		worker := s.worker("mail")
		later := noon.Add(time.Minute)
		claims := s.claimAs(worker, later, 10, "mail")
		require.Len(s, claims, 1)
		claim := claims[0]
		m.Number, m.ReceivedAt = models.MessageNumber(s.numbers("m1")[0]), noon
		require.Equal(s, &m.Message, claim.Message)
		require.EqualValues(s, 2, claim.Version)
		require.Equal(s, noon, claim.CreatedAt)
		require.Equal(s, noon, claim.Due)
		require.Equal(s, "m1", claim.MessageID)

		row := s.status("m1", "mail")
		require.Equal(s, claim.StatusID, row.ID)
		require.EqualValues(s, 2, row.Version)
		require.Equal(s, later, row.ProcessingStartedAt.UTC())
		require.Equal(s, worker, *row.WorkerID)
		require.Empty(s, s.claimAs(worker, later, 10, "mail"), "claimed already")
	}},
	{"only due open statuses of the key are claimed", func(s *suite) {
		s.accept(message("future", "mail"), message("poisoned", "mail"), message("completed", "mail"),
			message("due", "mail", "other"))
		soon := noon.Add(time.Second)
		for _, claim := range s.claim(noon, 10, "mail") {
			switch settled := settlement(claim); claim.MessageID {
			case "future":
				settled.NextAttemptAt = &soon
				s.settle(settled)
			case "poisoned":
				settled.Poisoned = true
				s.settle(settled)
			case "completed":
				s.complete(noon, claim)
			default:
				s.settle(settled)
			}
		}
		require.Equal(s, []string{"due/mail"}, claimed(s.claim(soon.Add(-time.Microsecond), 10, "mail", "unknown")))
		require.Equal(s, []string{"future/mail"}, claimed(s.claim(soon, 10, "mail")))
	}},
	{"oldest due first, retries and new work by age", func(s *suite) {
		s.acceptAt(noon, message("a", "mail"))
		retry := settlement(s.claim(noon, 1, "mail")[0])
		at := noon.Add(10 * time.Second)
		retry.NextAttemptAt = &at
		s.settle(retry)
		s.acceptAt(noon.Add(5*time.Second), message("b", "mail"))
		s.acceptAt(noon.Add(15*time.Second), message("c", "mail"))
		claims := s.claim(noon.Add(time.Minute), 10, "mail")
		require.Equal(s, []string{"b/mail", "a/mail", "c/mail"}, claimed(claims))
		require.Equal(s, at, claims[1].Due)
	}},
	{"on PostgreSQL a new status is due at once, however far clocks are apart", func(s *suite) {
		if s.onSQLite("all processes of a SQLite file share the machine's clock") {
			return
		}
		s.byTheMachinesClock()
		now := time.Now()
		s.acceptAt(now.Add(time.Hour), message("by a clock that is ahead", "mail"))
		s.acceptAt(now, message("to a clock that is behind", "stock"))
		claims := s.claim(now.Add(-time.Minute), 10, "mail", "stock")
		require.Equal(s, []string{"by a clock that is ahead/mail", "to a clock that is behind/stock"}, claimed(claims))
		// A retry, however, waits for the claimer's own clock.
		retry := settlement(claims[0])
		at := now.Add(-30 * time.Second)
		retry.NextAttemptAt = &at
		s.settle(retry)
		require.Empty(s, s.claim(now.Add(-time.Minute), 10, "mail"))
		require.Len(s, s.claim(now, 10, "mail"), 1)
	}},
	{"each key has a separate limit despite the backlog of others", func(s *suite) {
		s.accept(messages(50, "busy")...)
		s.accept(message("z1", "calm"), message("z2", "calm"))
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon, Limits: []store.KeyLimit{
			{HandlerKey: "calm", Limit: 10}, {HandlerKey: "none", Limit: 0}, {HandlerKey: "busy", Limit: 3},
			{HandlerKey: "idle", Limit: 5},
		}})
		require.NoError(s, err)
		require.Equal(s, []string{"m000/busy", "m001/busy", "m002/busy", "z1/calm", "z2/calm"}, claimed(got.Claims))
		require.Empty(s, s.claim(noon, 0, "busy"))
		require.Empty(s, s.claim(noon, 5))
	}},
	{"a claim ends once it has so many bytes, and has some messages in any case", func(s *suite) {
		for _, key := range []string{"mail", "lane"} {
			var due []store.NewMessage
			for i, kilobytes := range []int{1, 1, 400, 1, 400, 1} {
				m := message(fmt.Sprint(key, i), key)
				m.Content = bytes.Repeat([]byte("random enough to be stored out of line:"), kilobytes<<10/39)
				due = append(due, m)
			}
			s.accept(due...)
		}
		lanes := &store.LaneRule{Handlers: []int64{store.LaneHandler("lane")}}
		for _, step := range []struct {
			bytes, atLeast int
			claimed        []string
			more           bool
		}{
			{500, 0, []string{"0"}, true},          // the first one in any case
			{1 << 10, 1, []string{"1", "2"}, true}, // the one that exceeds it, too
			{1, 2, []string{"3", "4"}, true},       // so many in any case
			{500 << 10, 0, []string{"5"}, false},   // no more
			{0, 0, nil, false},
		} {
			got, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon, WorkerID: s.worker("mail", "lane"), Limits: []store.KeyLimit{
				{HandlerKey: "mail", Limit: 10, Bytes: step.bytes, AtLeast: step.atLeast},
				{HandlerKey: "lane", Limit: 10, Bytes: step.bytes, AtLeast: step.atLeast, Lanes: lanes},
			}})
			require.NoError(s, err)
			expected := []string{}
			for _, key := range []string{"lane", "mail"} {
				for _, i := range step.claimed {
					expected = append(expected, key+i+"/"+key)
				}
			}
			require.Equal(s, expected, claimed(got.Claims))
			if step.more {
				require.Equal(s, []string{"lane", "mail"}, got.More)
			} else {
				require.Empty(s, got.More)
			}
		}
	}},
	{"a claim that reaches its byte limit reports more, by the stored sizes", func(s *suite) {
		lanes := &store.LaneRule{Handlers: []int64{store.LaneHandler("lane")}}
		s.accept(messages(3, "mail")...)
		s.accept(message("l1", "lane"), message("l2", "lane"))
		require.NoError(s, s.db.Exec("UPDATE inbox_handler_statuses SET message_bytes = 5000").Error)
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon, WorkerID: s.worker("mail", "lane"), Limits: []store.KeyLimit{
			{HandlerKey: "mail", Limit: 10, Bytes: 5000}, {HandlerKey: "lane", Limit: 10, Bytes: 5000, Lanes: lanes},
		}})
		require.NoError(s, err)
		require.Len(s, got.Claims, 2)
		require.Equal(s, []string{"lane", "mail"}, got.More)
	}},
	{"a claimed status is not claimed again", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"))
		require.Len(s, s.claim(noon, 1, "mail"), 1)
		require.Equal(s, []string{"m2/mail"}, claimed(s.claim(noon, 10, "mail")))
		require.Empty(s, s.claimAs(s.worker("mail"), noon.Add(time.Hour), 10, "mail"))
	}},
	{"competing claimers get every row once", func(s *suite) {
		const rows, claimers = 400, 8
		s.accept(messages(rows, "mail")...)
		var lock sync.Mutex
		seen := map[string]int{}
		s.noErrors(racetest.Together(claimers, func(i int) error {
			for idle := 0; idle < 20; {
				claims, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon,
					Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 7}}})
				if err != nil {
					return err
				}
				if len(claims.Claims) == 0 {
					idle++ // other claimers may have locked what is left
				}
				lock.Lock()
				for _, claim := range claims.Claims {
					seen[claim.MessageID]++
				}
				lock.Unlock()
			}
			return nil
		}))
		for _, claim := range s.claim(noon, rows, "mail") { // skipped because of locks
			seen[claim.MessageID]++
		}
		require.Len(s, seen, rows)
		for id, times := range seen {
			require.Equal(s, 1, times, id)
		}
	}},
	{"rows another transaction has locked are passed over", func(s *suite) {
		if s.onSQLite("SQLite locks no rows: its one writer makes claimers take turns, as the test before shows") {
			return
		}
		s.accept(message("m1", "mail"), message("m2", "mail"))
		tx := s.begin()
		s.lock(tx, "inbox_handler_statuses", "message_id = 'm1'")
		require.Equal(s, []string{"m2/mail"}, claimed(s.claim(noon, 1, "mail")))
		require.NoError(s, tx.Rollback().Error)
		require.Equal(s, []string{"m1/mail"}, claimed(s.claim(noon, 10, "mail")))
	}},
	{"a claim that begins after a place passes earlier rows and says so, and the next one finds them", func(s *suite) {
		s.accept(messages(6, "mail")...)
		first := s.claim(noon, 3, "mail")
		s.settle(settlement(first[0])) // due again, before the others
		resumed := func(limit int) store.Claimed {
			end := first[len(first)-1]
			got, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon, Limits: []store.KeyLimit{{HandlerKey: "mail",
				Limit: limit, After: &store.Place{Due: end.Due, StatusID: end.StatusID}}}})
			require.NoError(s, err)
			return got
		}
		got := resumed(2)
		require.Empty(s, got.More, "it filled its limit")
		if s.onSQLite("claims of a file's one worker always begin at the longest due row") {
			require.Equal(s, []string{"m000/mail", "m003/mail"}, claimed(got.Claims))
			return
		}
		require.Equal(s, []string{"m003/mail", "m004/mail"}, claimed(got.Claims))
		got = resumed(2)
		require.Equal(s, []string{"m005/mail"}, claimed(got.Claims))
		require.Equal(s, []string{"mail"}, got.More)
		require.Equal(s, []string{"m000/mail"}, claimed(s.claim(noon, 2, "mail")))
	}},
	{"a claim that begins after a place passes rows that others have locked, even if they let go", func(s *suite) {
		if !s.seesLocks() {
			s.Log("only a row of PostgreSQL shows that it was locked, to the native profile")
			return
		}
		s.accept(messages(4, "mail")...)
		end := s.claim(noon, 1, "mail")[0]
		tx := s.begin()
		require.NoError(s, tx.Exec(`SELECT 1 FROM inbox_handler_statuses WHERE message_id = 'm001' FOR UPDATE`).Error)
		require.NoError(s, tx.Rollback().Error)
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon, Limits: []store.KeyLimit{{HandlerKey: "mail",
			Limit: 5, After: &store.Place{Due: end.Due, StatusID: end.StatusID}}}})
		require.NoError(s, err)
		require.Equal(s, []string{"m002/mail", "m003/mail"}, claimed(got.Claims))
		require.Equal(s, []string{"mail"}, got.More)
		require.Equal(s, []string{"m001/mail"}, claimed(s.claim(noon, 5, "mail")))
	}},
	{"an unknown or released worker claims nothing", func(s *suite) {
		s.accept(message("m1", "mail"))
		require.Empty(s, s.claimAs(uuid.NewString(), noon, 10, "mail"))
		worker := s.worker("mail")
		require.NoError(s, s.store.MarkReleased(s.ctx, worker, noon))
		require.Empty(s, s.claimAs(worker, noon, 10, "mail"))
		require.Len(s, s.claimAs(s.worker("mail"), noon, 10, "mail"), 1)
	}},
	{"a worker marked released while it claims leaves no claim unseen, and heartbeats do not wait", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		s.accept(message("m1", "mail", "stock"))
		for _, limit := range []store.KeyLimit{{HandlerKey: "mail", Limit: 1},
			{HandlerKey: "stock", Limit: 1, Lanes: &store.LaneRule{Handlers: []int64{1}}}} {
			worker := s.worker("mail", "stock")
			release := s.hold(Event{Statement: "UPDATE", Table: "inbox_handler_statuses"})
			s.releaseWorkerDuring(worker, release, func() (int, error) {
				got, err := s.store.Claim(s.ctx, store.ClaimRequest{WorkerID: worker, Now: noon, Limits: []store.KeyLimit{limit}})
				return len(got.Claims), err
			})
		}
	}},
	{"a status whose message is gone comes without one", func(s *suite) {
		s.accept(message("m1", "mail"), ordered("m2", "k", "stock"))
		if of, err := dialects.Of(s.db); err == nil && of.CreateSchema != nil { // PostgreSQL and MySQL
			cascade := `ALTER TABLE inbox_handler_statuses DROP CONSTRAINT inbox_handler_statuses_message_fk`
			if s.partitioned() {
				cascade = s.server.DropTrigger("inbox_cascade", "inbox_messages")
			}
			require.NoError(s, s.db.Exec(cascade).Error)
			require.NoError(s, s.db.Exec(`DELETE FROM inbox_messages`).Error)
		} else {
			require.NoError(s, s.db.Connection(func(tx *gorm.DB) error {
				for _, statement := range []string{`PRAGMA foreign_keys = off`, `DELETE FROM inbox_messages`,
					`PRAGMA foreign_keys = on`} {
					if err := tx.Exec(statement).Error; err != nil {
						return err
					}
				}
				return nil
			}))
		}
		rule := ruleOf("stock")
		for _, limit := range []store.KeyLimit{{HandlerKey: "mail", Limit: 10, Bytes: 1 << 20},
			{HandlerKey: "stock", Limit: 10, Bytes: 1 << 20, Lanes: &rule}} {
			got, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon, Limits: []store.KeyLimit{limit}})
			require.NoError(s, err)
			require.Len(s, got.Claims, 1)
			require.Nil(s, got.Claims[0].Message)
		}
	}},
	{"windows lead past messages of other namespaces, which a claim within one leaves", func(s *suite) {
		batch := messages(store.WindowRows+20, "mail", "lanes")
		for i := range batch {
			batch[i].Handlers[1].Lane = &store.Lane{Handler: 1, Key: int64(i)}
			if i%10 > 0 {
				batch[i].Namespace = "partners"
			}
		}
		s.accept(batch...)
		s.claim(noon, 1, "mail") // what is claimed counts, too
		next := func(key string, after *store.Place, leave ...string) store.Window {
			w, err := s.store.NextWindow(s.ctx, key, after, leave, noon)
			require.NoError(s, err)
			return w
		}
		for _, limit := range []store.KeyLimit{{HandlerKey: "mail", Limit: 200},
			{HandlerKey: "lanes", Limit: 200, Lanes: &store.LaneRule{Handlers: []int64{1}}}} {
			key := limit.HandlerKey
			full := next(key, nil, "partners", "others")
			require.NotNil(s, full.End)
			rest := next(key, full.End, "partners", "others")
			require.Nil(s, rest.End)
			for w, want := range map[*store.Window]int{&full: 100, &rest: 2} {
				if w == &full && limit.Lanes == nil {
					want--
				}
				claimed, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon, Limits: []store.KeyLimit{limit}, Within: w})
				require.NoError(s, err)
				require.Len(s, claimed.Claims, want)
				for _, c := range claimed.Claims {
					require.Equal(s, "orders", c.Message.Namespace)
				}
			}
			require.Empty(s, next(key, nil, "partners", "orders").StatusIDs)
			require.Empty(s, next(key, nil, "partners").StatusIDs, "claimed")
			require.Len(s, next(key, rest.After, "others").StatusIDs, 18)
			require.Len(s, next(key, rest.After).StatusIDs, 18, "no namespace is left to others")
			require.EqualValues(s, 1, s.status("m001", key).Version, "not written")
		}
	}},
	{"NextDue returns the earliest due time to come", func(s *suite) {
		none := func() {
			s.Helper()
			due, err := s.store.NextDue(s.ctx, []string{"mail", "stock"}, noon)
			require.NoError(s, err)
			require.Zero(s, due)
		}
		none()
		s.accept(message("m1", "mail", "stock"), message("m2", "mail"), message("m3", "other"))
		none()
		later, latest := noon.Add(time.Minute), noon.Add(time.Hour)
		claims := s.claim(noon, 10, "mail", "other", "stock")
		for i := range claims {
			settled := settlement(claims[i])
			switch {
			case claims[i].HandlerKey == "other":
				soon := noon.Add(time.Second)
				settled.NextAttemptAt = &soon
			case claims[i].HandlerKey == "stock":
				settled.NextAttemptAt = &later
			default:
				settled.NextAttemptAt = &latest
			}
			s.settle(settled)
		}
		due, err := s.store.NextDue(s.ctx, []string{"mail", "stock", "unknown"}, noon)
		require.NoError(s, err)
		require.Equal(s, later, due)
		due, err = s.store.NextDue(s.ctx, []string{"mail", "stock"}, later)
		require.NoError(s, err)
		require.Equal(s, latest, due)
		due, err = s.store.NextDue(s.ctx, nil, noon)
		require.NoError(s, err)
		require.Zero(s, due)
	}},
	{"Siblings returns the same messages' rows under other keys", func(s *suite) {
		s.accept(message("m1", "new", "old", "other"), message("m2", "old"), message("m3", "old"))
		s.complete(noon, s.claim(noon, 1, "new")...)
		s.poison(s.claim(noon, 1, "old")[0])
		claims := s.claim(noon, 1, "old")
		found, err := s.store.Siblings(s.ctx, s.numbers("m1", "m2"), []string{"new", "old"})
		require.NoError(s, err)
		require.Len(s, found, 3)
		require.True(s, found[0].Completed)
		require.Equal(s, models.OutcomeProcessed, found[0].Outcome)
		require.True(s, found[1].Poisoned)
		require.True(s, found[2].Processing)
		require.Equal(s, claims[0].Ref, found[2].Ref)
		require.Equal(s, s.status("m1", "new").ID, found[0].StatusID)
	}},
}
