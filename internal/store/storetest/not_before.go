package storetest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
)

// notBefore gives all of the message's statuses a time.
func notBefore(at time.Time, m store.NewMessage) store.NewMessage {
	for i := range m.Handlers {
		m.Handlers[i].NotBefore = at
	}
	return m
}

// dueAt requires when a status is due; the zero time is at once.
func (s *suite) dueAt(at time.Time, messageID, handlerKey string) {
	s.Helper()
	next := s.status(messageID, handlerKey).NextAttemptAt
	if at.IsZero() {
		require.Nil(s, next, messageID)
		return
	}
	require.NotNil(s, next, messageID)
	require.Equal(s, at, next.UTC(), messageID)
}

// notBeforeTests cover statuses with a time before which they do not run (contract 4.8).
var notBeforeTests = []test{
	{"a status with a time is claimed then and not before, and counts as nothing until then", func(s *suite) {
		later := noon.Add(time.Hour)
		m := message("m2", "mail", "stock")
		m.Handlers[1].NotBefore = later
		accepted := s.accept(notBefore(later, message("m1", "mail")), m, message("m3", "mail"))
		require.Equal(s, []store.Accepted{{Inserted: true, StatusesAdded: 1}, {Inserted: true, StatusesAdded: 2},
			{Inserted: true, StatusesAdded: 1}}, accepted)
		require.Equal(s, []string{"m1/mail", "m2/mail", "m2/stock", "m3/mail"}, pairs(s.statuses()))
		s.dueAt(later, "m1", "mail")
		s.dueAt(time.Time{}, "m2", "mail")
		s.dueAt(later, "m2", "stock")
		require.Equal(s, []string{"m2/mail", "m3/mail"}, claimed(s.claim(later.Add(-time.Microsecond), 10, "mail", "stock")))
		due, err := s.store.NextDue(s.ctx, []string{"mail", "stock"}, noon)
		require.NoError(s, err)
		require.Equal(s, later, due)
		backlog, err := s.store.Backlog(s.ctx, []store.KeyLimit{{HandlerKey: "stock", Limit: 10}}, later.Add(-time.Microsecond))
		require.NoError(s, err)
		require.Equal(s, []store.Backlog{{HandlerKey: "stock"}}, backlog)

		claims := s.claim(later, 10, "mail", "stock")
		require.Equal(s, []string{"m1/mail", "m2/stock"}, claimed(claims))
		for _, c := range claims {
			require.Equal(s, later, c.Due)
			require.Equal(s, noon, c.CreatedAt)
			require.Zero(s, c.ErrorCount+c.AbandonedCount+c.InterruptedCount+c.RequeuedCount)
		}
	}},
	{"a time that is not to come is none", func(s *suite) {
		s.accept(notBefore(noon, message("m1", "mail")), notBefore(noon.Add(-time.Hour), message("m2", "mail")),
			notBefore(time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC), message("m3", "mail")),
			notBefore(noon.Add(time.Microsecond), message("m4", "mail")))
		for _, id := range []string{"m1", "m2", "m3"} {
			s.dueAt(time.Time{}, id, "mail")
		}
		s.dueAt(noon.Add(time.Microsecond), "m4", "mail")
	}},
	{"on servers the database's clock judges whether a time is to come", func(s *suite) {
		if s.onSQLite("the caller's clock judges there") {
			return
		}
		s.byTheMachinesClock()
		ahead := time.Now().Add(time.Hour).Truncate(time.Microsecond).UTC()
		later, past := ahead.Add(-time.Minute), time.Now().Add(-time.Minute)
		s.acceptAt(ahead, notBefore(later, message("m1", "mail")))
		s.acceptAt(past.Add(-time.Hour), notBefore(past, message("m2", "mail")))
		s.acceptAt(past.Add(-time.Hour), notBefore(past, message("m1", "mail", "stock")))
		s.dueAt(later, "m1", "mail")
		s.dueAt(time.Time{}, "m2", "mail")
		s.dueAt(time.Time{}, "m1", "stock")
	}},
	{"a duplicate changes no time and is no other content, and a row that it adds has its own", func(s *suite) {
		first, second := noon.Add(time.Hour), noon.Add(2*time.Hour)
		s.accept(notBefore(first, message("m1", "mail")), message("m2", "mail"))
		require.Equal(s, []store.Accepted{{StatusesAdded: 1}, {StatusesAdded: 1}, {Inserted: true, StatusesAdded: 1}},
			s.accept(notBefore(second, message("m1", "mail", "stock")), notBefore(second, message("m2", "mail", "stock")),
				notBefore(first, message("m3", "stock"))))
		s.dueAt(first, "m1", "mail")
		s.dueAt(second, "m1", "stock")
		s.dueAt(time.Time{}, "m2", "mail")
		s.dueAt(second, "m2", "stock")
		s.dueAt(first, "m3", "stock")
		require.Equal(s, []string{"m1/mail", "m2/mail", "m1/stock", "m2/stock", "m3/stock"}, pairs(s.statuses()))
	}},
	{"a caller's transaction stores the time", func(s *suite) {
		later := noon.Add(10 * 365 * 24 * time.Hour)
		require.NoError(s, s.db.Transaction(func(tx *gorm.DB) error {
			s.acceptTx(tx, noon, notBefore(later, message("m1", "mail")))
			return nil
		}))
		s.dueAt(later, "m1", "mail")
	}},
	{"a status with a time is not claimed as others of its accept are", func(s *suite) {
		worker := s.worker("mail", "stock")
		m := message("m1", "mail", "stock")
		m.Handlers[0].Claim, m.Handlers[1].NotBefore = true, noon.Add(time.Hour)
		accepted := s.acceptFor(worker, m, dispatched(message("m2", "mail")))
		require.Equal(s, []string{"m1/mail"}, claimed(accepted[0].Claims))
		require.Equal(s, []string{"m2/mail"}, claimed(accepted[1].Claims))
		s.dueAt(noon.Add(time.Hour), "m1", "stock")
		s.dueAt(time.Time{}, "m1", "mail")
		require.Equal(s, []string{"m1/stock"}, claimed(s.claimAs(worker, noon.Add(time.Hour), 10, "mail", "stock")))
	}},
	{"a lane's later rows wait for one whose time is to come", func(s *suite) {
		later := noon.Add(time.Hour)
		s.accept(notBefore(later, ordered("m1", "k", "mail")), notBefore(noon.Add(time.Minute), ordered("m2", "k", "mail")),
			ordered("m3", "k", "mail"), ordered("other", "o", "mail"))
		claims := s.heads(noon.Add(time.Minute), 10)
		require.Equal(s, []string{"other/mail"}, claimed(claims))
		s.complete(noon, claims...)
		require.Empty(s, s.heads(later.Add(-time.Microsecond), 1), "the claim passes over m2 and m3")
		require.Equal(s, []string{"m2", "m3"}, s.waiting())
		due, err := s.store.NextDue(s.ctx, []string{"mail"}, noon)
		require.NoError(s, err)
		require.Equal(s, later, due)
		for _, id := range []string{"m1", "m2", "m3"} {
			claims := s.heads(later, 10)
			require.Equal(s, []string{id + "/mail"}, claimed(claims))
			s.complete(later, claims...)
			s.advanceAt(later, ruleOf("mail"), claims...)
		}
	}},
	{"a row behind one that ends is claimed with it only once its time has come", func(s *suite) {
		later := noon.Add(time.Hour)
		worker := s.worker("mail")
		s.accept(ordered("m1", "k", "mail"), notBefore(later, ordered("m2", "k", "mail")))
		claims := s.heads(noon, 10)
		s.complete(noon, claims...)
		request := ruleOf("mail").Request(*claims[0].Lane)
		request.ClaimKey = "mail"
		for _, now := range []time.Time{later.Add(-time.Microsecond), later} {
			next, err := s.store.ClaimNext(s.ctx, worker, []store.LaneRequest{request}, now)
			require.NoError(s, err)
			require.Equal(s, now == later, len(next.Claims) == 1, now)
			require.Empty(s, next.More)
		}
	}},
	{"a lane of thousands behind a row that is due in a year slows no other", func(s *suite) {
		const behind = 3000
		year := noon.AddDate(1, 0, 0)
		s.accept(notBefore(year, ordered("head", "k", "mail")))
		batch := make([]store.NewMessage, behind)
		for i := range batch {
			batch[i] = ordered(fmt.Sprintf("m%05d", i), "k", "mail")
		}
		s.accept(batch...)
		for n := 0; ; n++ {
			got := s.claimUnder(ruleOf("mail"), noon, 100, "mail")
			require.Empty(s, got.Claims)
			if len(got.More) == 0 {
				break
			}
			require.Less(s, n, 10, "each claim marks the rows that it passes over")
		}
		require.Greater(s, len(s.waiting()), behind-101)
		before := len(s.waiting())
		s.accept(ordered("other", "o", "mail"), message("free", "mail"))
		got := s.claimUnder(ruleOf("mail"), noon, 100, "mail")
		require.Equal(s, []string{"other/mail", "free/mail"}, claimed(got.Claims))
		s.complete(noon, got.Claims...)
		require.Empty(s, s.advance(ruleOf("mail"), store.Claim{Ref: store.Ref{Lane: store.LaneOf("mail", []byte("k"))}}))
		require.Len(s, s.waiting(), before, "no check of the lane lets them go before its first")
		require.Equal(s, []string{"head/mail"}, claimed(s.heads(year, 10)))
	}},
}
