package storetest

import (
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
)

// next has a worker claim the next rows of lanes of "mail" at noon.
func (s *suite) next(worker string, rule store.LaneRule, ended ...store.Claim) store.Claimed {
	s.Helper()
	return s.nextAt(noon, worker, rule, ended...)
}

func (s *suite) nextAt(now time.Time, worker string, rule store.LaneRule, ended ...store.Claim) store.Claimed {
	s.Helper()
	var requests []store.LaneRequest
	for _, claim := range ended {
		request := rule.Request(*claim.Lane)
		request.ClaimKey = claim.HandlerKey
		requests = append(requests, request)
	}
	got, err := s.store.ClaimNext(s.ctx, worker, requests, now)
	require.NoError(s, err)
	return got
}

// laneNextTests cover ClaimNext.
var laneNextTests = []test{
	{"ClaimNext claims the next row of a lane, as Claim would", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m1", "m2", "m3")
		s.accept(ordered("o1", "other", "mail"), ordered("o2", "other", "mail"))
		heads := s.heads(noon, 2)
		require.Equal(s, []string{"m1/mail", "o1/mail"}, claimed(heads))
		require.Empty(s, s.heads(noon, 1))
		require.Equal(s, []string{"m2", "m3", "o2"}, s.waiting())
		require.Empty(s, s.next(worker, ruleOf("mail"), heads...), "both still run")
		s.complete(noon, heads...)
		got := s.next(worker, ruleOf("mail"), heads...)
		require.Equal(s, []string{"m2/mail", "o2/mail"}, claimed(got.Claims))
		require.Empty(s, got.More)
		require.Equal(s, "m2", got.Claims[0].Message.ID)
		require.Equal(s, []byte("k"), got.Claims[0].Message.OrderingKey)
		row := s.status("m2", "mail")
		require.EqualValues(s, row.Version, got.Claims[0].Version)
		require.Equal(s, worker, *row.WorkerID)
		require.True(s, row.HoldsLane)
		require.False(s, row.IsWaiting)
		require.WithinDuration(s, noon, *row.ProcessingStartedAt, 0)
		require.Equal(s, []string{"m3"}, s.waiting())
		require.Empty(s, s.heads(noon, 5), "both lanes are held")
		require.Empty(s, s.next(worker, ruleOf("mail"), heads...), "asked twice")
		s.complete(noon, got.Claims...)
		require.Equal(s, []string{"m3/mail"}, claimed(s.next(worker, ruleOf("mail"), got.Claims...).Claims))
	}},
	{"ClaimNext claims no row before its time, nor one after it", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m1", "m2")
		head := s.heads(noon, 1)[0]
		again := noon.Add(time.Minute)
		s.retryAt(head, again)
		require.Empty(s, s.next(worker, ruleOf("mail"), head))
		require.Equal(s, []string{"m1/mail"}, claimed(s.nextAt(again, worker, ruleOf("mail"), head).Claims))
	}},
	{"ClaimNext claims no row after a poisoned one unless the rule skips it", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m1", "m2", "m3")
		head := s.heads(noon, 1)[0]
		s.poison(head)
		require.Empty(s, s.next(worker, ruleOf("mail"), head), "parked")
		got := s.next(worker, skipping(ruleOf("mail")), head)
		require.Equal(s, []string{"m2/mail"}, claimed(got.Claims))
		s.retry("m1", "mail")
		require.Empty(s, s.next(worker, skipping(ruleOf("mail")), head), "m2 runs")
		s.complete(noon, got.Claims...)
		require.Equal(s, []string{"m1/mail"}, claimed(s.next(worker, skipping(ruleOf("mail")), head).Claims))
	}},
	{"ClaimNext only releases rows for a worker that is not alive, and where no claim is asked for", func(s *suite) {
		for _, end := range []string{"unknown", "released", "not asked"} {
			s.acceptLane(end+" 1", end+" 2", end+" 3")
			head := s.heads(noon, 1)[0]
			require.Empty(s, s.heads(noon, 1))
			s.complete(noon, head)
			worker, request := uuid.NewString(), ruleOf("mail").Request(*head.Lane)
			if end != "not asked" {
				request.ClaimKey = "mail"
			}
			if end != "unknown" {
				worker = s.worker("mail")
			}
			if end == "released" {
				require.NoError(s, s.store.MarkReleased(s.ctx, worker, noon))
			}
			got, err := s.store.ClaimNext(s.ctx, worker, []store.LaneRequest{request}, noon)
			require.NoError(s, err)
			require.Equal(s, store.Claimed{More: []string{"mail"}}, got, end)
			require.Equal(s, []string{end + " 3"}, s.waiting())
			for range 2 {
				claims := s.heads(noon, 1)
				s.complete(noon, claims...)
				s.advance(ruleOf("mail"), claims...)
			}
		}
	}},
	{"ClaimNext leaves the next row to other programs if it has another handler key", func(s *suite) {
		worker, after := s.worker("mail"), ruleOf("post", "mail")
		renamed := func(id string) store.NewMessage {
			m := ordered(id, "k", "post")
			m.Handlers[0].Lane = store.LaneOf("mail", m.OrderingKey)
			return m
		}
		for _, marked := range [][]string{nil, {"m2", "m3"}} {
			s.acceptLane("m1")
			s.accept(renamed("m2"), renamed("m3"))
			ended := s.heads(noon, 1)
			if marked != nil {
				require.Empty(s, s.claimUnder(after, noon, 1, "post").Claims, "m1 runs")
			}
			require.Equal(s, marked, s.waiting())
			s.complete(noon, ended...)
			require.Equal(s, store.Claimed{More: []string{"post"}}, s.next(worker, ruleOf("mail"), ended...))
			for _, id := range []string{"m2", "m3"} {
				claims := s.claimUnder(after, noon, 2, "post").Claims
				require.Equal(s, []string{id + "/post"}, claimed(claims))
				s.complete(noon, claims...)
				s.advance(after, claims...)
			}
			require.NoError(s, s.db.Exec("DELETE FROM inbox_handler_statuses").Error)
			require.NoError(s, s.db.Exec("DELETE FROM inbox_messages").Error)
		}
	}},
	{"a worker is not released while it claims the next row of a lane", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		s.acceptLane("m1", "m2")
		worker, head := s.worker("mail"), s.heads(noon, 1)[0]
		s.complete(noon, head)
		s.releaseWorkerDuring(worker, s.holdSetting("holds_lane"), func() (int, error) {
			request := ruleOf("mail").Request(*head.Lane)
			request.ClaimKey = "mail"
			got, err := s.store.ClaimNext(s.ctx, worker, []store.LaneRequest{request}, noon)
			return len(got.Claims), err
		})
	}},
	{"two workers never claim the next row of a lane both", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		s.acceptLane("m1", "m2")
		worker, head := s.worker("mail"), s.heads(noon, 1)[0]
		s.complete(noon, head)
		// A claim has written that it claims m2, not committed.
		release := s.holdSetting("holds_lane")
		claiming := s.claimInBackground(ruleOf("mail"))
		s.waitForLock()
		next := make(chan store.Claimed, 1)
		go func() { next <- s.next(worker, ruleOf("mail"), head) }()
		s.waitForLocks(2)
		require.NoError(s, release())
		done := <-claiming
		require.NoError(s, done.err)
		require.Equal(s, []string{"m2/mail"}, claimed(done.got.Claims))
		require.Empty(s, <-next)
	}},
}
