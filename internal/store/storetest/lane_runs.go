package storetest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
)

// runs claims what follows these claims of "mail" in their lanes at noon, up to limit rows of each.
func (s *suite) runs(worker string, rule store.LaneRule, limit, bytes int, heads ...store.Claim) []store.Claim {
	s.Helper()
	return s.runsAt(noon, worker, rule, limit, bytes, heads...)
}

func (s *suite) runsAt(
	now time.Time, worker string, rule store.LaneRule, limit, bytes int, heads ...store.Claim,
) []store.Claim {
	s.Helper()
	claims, err := s.store.ClaimRuns(s.ctx, worker, runRequests(rule, limit, bytes, heads...), now)
	require.NoError(s, err)
	return claims
}

func runRequests(rule store.LaneRule, limit, bytes int, heads ...store.Claim) []store.RunRequest {
	requests := make([]store.RunRequest, len(heads))
	for i, head := range heads {
		requests[i] = store.RunRequest{LaneRequest: rule.Request(*head.Lane), Head: head.Ref, Limit: limit, Bytes: bytes}
		requests[i].ClaimKey = head.HandlerKey
	}
	return requests
}

// laneRunTests cover ClaimRuns.
var laneRunTests = []test{
	{"a run is claimed in the order of its lane, and nothing after it", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m3", "m1", "m4", "m2", "m5") // in the order of acceptance, whatever the IDs
		s.accept(ordered("o1", "other", "mail"), ordered("o2", "other", "mail"), ordered("p1", "third", "mail"))
		heads := s.heads(noon, 2)
		require.Equal(s, []string{"m3/mail", "o1/mail"}, claimed(heads))
		got := s.runs(worker, ruleOf("mail"), 3, 0, heads...)
		require.Equal(s, []string{"m1/mail", "m4/mail", "m2/mail", "o2/mail"}, claimed(got))
		require.Equal(s, []byte("k"), got[0].Message.OrderingKey)
		for _, claim := range got {
			row := s.status(claim.MessageID, "mail")
			require.EqualValues(s, row.Version, claim.Version)
			require.Equal(s, worker, *row.WorkerID)
			require.WithinDuration(s, noon, *row.ProcessingStartedAt, 0)
			require.False(s, row.HoldsLane)
			require.Equal(s, claim.MessageID, claim.Message.ID)
		}
		require.Equal(s, []string{"p1/mail"}, claimed(s.heads(noon, 9)), "m5 and all before it are not free")
		require.Empty(s, s.runs(worker, ruleOf("mail"), 3, 0, heads[1]), "all of it is claimed")
		require.Empty(s, s.runs(worker, ruleOf("mail"), 3, 0, heads[0]), "the next row is claimed")
	}},
	{"what was marked as waiting is claimed with a run", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m1", "m2", "m3", "m4")
		heads := s.heads(noon, 1)
		require.Empty(s, s.heads(noon, 1))
		require.Equal(s, []string{"m2", "m3", "m4"}, s.waiting())
		require.Equal(s, []string{"m2/mail", "m3/mail"}, claimed(s.runs(worker, ruleOf("mail"), 2, 0, heads...)))
		require.Equal(s, []string{"m4"}, s.waiting())
	}},
	{"no row of a run is free before all before it have ended", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m1", "m2", "m3", "m4")
		heads := s.heads(noon, 1)
		run := s.runs(worker, ruleOf("mail"), 2, 0, heads...)
		s.complete(noon, heads[0], run[0]) // m3 fails
		require.Empty(s, s.next(worker, ruleOf("mail"), heads[0]), "m3 is claimed, though no row holds the lane")
		require.Empty(s, s.heads(noon, 5))
		s.settle(settlement(run[1]))
		require.Equal(s, []string{"m3/mail"}, claimed(s.next(worker, ruleOf("mail"), run[1]).Claims))
	}},
	{"a run's rows that are given back come again in their order", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m1", "m2", "m3", "m4")
		heads := s.heads(noon, 1)
		run := s.runs(worker, ruleOf("mail"), 3, 0, heads...)
		s.settle(settlement(run[2]), settlement(run[0]))
		require.Empty(s, s.heads(noon, 5), "m1 is claimed")
		s.complete(noon, heads[0])
		again := s.heads(noon, 5)
		require.Equal(s, []string{"m2/mail"}, claimed(again))
		require.Empty(s, s.runs(worker, ruleOf("mail"), 3, 0, again...), "m3 is claimed still")
		s.complete(noon, run[1], again[0])
		require.Equal(s, []string{"m4/mail"}, claimed(s.heads(noon, 5)))
	}},
	{"a run ends before a row that is not due, poisoned, once abandoned or of another key", func(s *suite) {
		worker := s.worker("mail")
		later := noon.Add(time.Minute)
		for _, c := range []struct {
			what, change string
			rule         store.LaneRule
			want         []string
		}{
			{"not due", `next_attempt_at = ?`, ruleOf("mail"), []string{"2/mail"}},
			{"poisoned", `is_poisoned = true, poisoned_at = ?`, ruleOf("mail"), []string{"2/mail"}},
			{"poisoned and skipped", `is_poisoned = true, poisoned_at = ?`, skipping(ruleOf("mail")),
				[]string{"2/mail", "4/mail"}},
			{"once abandoned", `abandoned_count = 1, created_at = ?`, ruleOf("mail"), []string{"2/mail"}},
			{"once interrupted", `interrupted_count = 1, created_at = ?`, ruleOf("mail"), []string{"2/mail"}},
			{"of another key", `handler_key = 'post', processing_started_at = NULL, created_at = ?`, ruleOf("mail"),
				[]string{"2/mail"}},
		} {
			s.acceptLane("1", "2", "3", "4")
			require.NoError(s, s.db.Exec(`UPDATE inbox_handler_statuses SET `+c.change+` WHERE message_id = '3'`, later).Error)
			heads := s.claimUnder(c.rule, noon, 1, "mail").Claims
			require.Equal(s, []string{"1/mail"}, claimed(heads), c.what)
			require.Equal(s, c.want, claimed(s.runs(worker, c.rule, 9, 0, heads...)), c.what)
			require.NoError(s, s.db.Exec("DELETE FROM inbox_handler_statuses").Error)
			require.NoError(s, s.db.Exec("DELETE FROM inbox_messages").Error)
		}
	}},
	{"a run ends at its bytes", func(s *suite) {
		worker := s.worker("mail")
		for i := range 5 {
			m := ordered(fmt.Sprint(i), "k", "mail")
			m.Content = make([]byte, 100)
			s.accept(m)
		}
		heads := s.heads(noon, 1)
		size := heads[0].Size()
		require.Empty(s, s.runs(worker, ruleOf("mail"), 9, size-1, heads...))
		require.Len(s, s.runs(worker, ruleOf("mail"), 9, 3*size-1, heads...), 2)
	}},
	{"a run needs its head, at the version that was claimed", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m1", "m2", "m3")
		lost := s.heads(noon, 1)
		s.settle(settlement(lost[0]))
		require.Empty(s, s.runs(worker, ruleOf("mail"), 9, 0, lost...), "given back")
		heads := s.heads(noon, 1)
		require.Equal(s, claimed(lost), claimed(heads))
		require.Empty(s, s.runs(worker, ruleOf("mail"), 9, 0, lost...), "claimed again")
		s.complete(noon, heads...)
		require.Empty(s, s.runs(worker, ruleOf("mail"), 9, 0, heads...), "ended")
	}},
	{"a worker that is not alive claims no run", func(s *suite) {
		worker := s.worker("mail")
		s.acceptLane("m1", "m2")
		heads := s.heads(noon, 1)
		require.Empty(s, s.runs("00000000-0000-0000-0000-00000000dead", ruleOf("mail"), 9, 0, heads...))
		require.NoError(s, s.store.MarkReleased(s.ctx, worker, noon))
		require.Empty(s, s.runs(worker, ruleOf("mail"), 9, 0, heads...))
	}},
	{"a run is empty while a row before its head is open", func(s *suite) {
		// Of two transactions that overlap, the one with the earlier number may be committed after the other's message was
		// claimed. What is stored after it must not leave before it.
		worker, rule := s.worker("mail"), skipping(ruleOf("mail"))
		s.acceptLane("m1", "m2", "m3")
		s.poison(s.claimUnder(rule, noon, 1, "mail").Claims[0])
		heads := s.claimUnder(rule, noon, 1, "mail").Claims
		require.Equal(s, []string{"m2/mail"}, claimed(heads))
		s.retry("m1", "mail")
		require.Empty(s, s.runs(worker, rule, 9, 0, heads...))
		s.complete(noon, heads...)
		first := s.claimUnder(rule, noon, 1, "mail").Claims
		require.Equal(s, []string{"m1/mail"}, claimed(first))
		require.Equal(s, []string{"m3/mail"}, claimed(s.runs(worker, rule, 9, 0, first...)))
	}},
	{"a run follows its lane under all names of the handler", func(s *suite) {
		worker, both := s.worker("mail"), ruleOf("mail", "post")
		renamed := func(id string) store.NewMessage {
			m := ordered(id, "k", "mail")
			m.Handlers[0].Lane = store.LaneOf("post", m.OrderingKey)
			return m
		}
		s.acceptLane("m1")
		s.accept(renamed("m2"))
		s.acceptLane("m3")
		s.accept(renamed("m4"))
		heads := s.claimUnder(both, noon, 9, "mail").Claims
		require.Equal(s, []string{"m1/mail"}, claimed(heads))
		require.Equal(s, []string{"m2/mail", "m3/mail", "m4/mail"}, claimed(s.runs(worker, both, 9, 0, heads...)))
	}},
	{"a run ends before a row that another transaction changes, and waits for none", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		worker := s.worker("mail")
		s.acceptLane("m1", "m2", "m3", "m4")
		heads := s.heads(noon, 1)
		tx := s.begin()
		s.lock(tx, "inbox_handler_statuses", "message_id = 'm3'")
		require.Equal(s, []string{"m2/mail"}, claimed(s.runs(worker, ruleOf("mail"), 9, 0, heads...)))
		require.NoError(s, tx.Rollback().Error)
	}},
	{"a run waits for no one who changes its head, and is empty", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		worker := s.worker("mail")
		s.acceptLane("m1", "m2")
		heads := s.heads(noon, 1)
		tx := s.begin()
		s.lock(tx, "inbox_handler_statuses", "message_id = 'm1'")
		require.Empty(s, s.runs(worker, ruleOf("mail"), 9, 0, heads...))
		require.NoError(s, tx.Rollback().Error)
	}},
	{"a worker is not released while it claims a run", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		s.acceptLane("m1", "m2")
		worker, heads := s.worker("mail"), s.heads(noon, 1)
		release := s.hold(Event{Statement: "UPDATE", Table: "inbox_handler_statuses"})
		s.releaseWorkerDuring(worker, release, func() (int, error) {
			claims, err := s.store.ClaimRuns(s.ctx, worker, runRequests(ruleOf("mail"), 1, 0, heads...), noon)
			return len(claims), err
		})
	}},
}
