package storetest

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/sqltest"
	"github.com/gorm-inbox/inbox/internal/store"
)

// claimBeatTests cover a worker with a backlog, which nearly always has a claim running. Each claim
// may take as long as its statement timeout.
var claimBeatTests = []test{
	{"a heartbeat does not wait for a claim under way, and beside that no worker is marked released", func(s *suite) {
		if !s.postgres() {
			s.Log("SQLite has one writer at a time")
			return
		}
		s.accept(message("m1", "mail", "stock"))
		for _, limit := range []store.KeyLimit{{HandlerKey: "mail", Limit: 1},
			{HandlerKey: "stock", Limit: 1, Lanes: &store.LaneRule{Handlers: []int64{1}}}} {
			worker := s.worker("mail", "stock")
			release := sqltest.HoldStatuses(s, s.db)
			claimed := make(chan error, 1)
			go func() {
				_, err := s.store.Claim(s.ctx, store.ClaimRequest{WorkerID: worker, Now: noon, Limits: []store.KeyLimit{limit}})
				claimed <- err
			}()
			require.Eventually(s, func() bool {
				var waiting int
				require.NoError(s,
					s.db.Raw("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted").Scan(&waiting).Error)
				return waiting == 1
			}, patience, 10*time.Millisecond)
			soon, cancel := context.WithTimeout(s.ctx, patience/2)
			require.NoError(s, s.store.Heartbeat(soon, store.Worker{ID: worker, Host: "host", PID: 7,
				HandlerKeys: []string{"mail"}}, noon), limit.HandlerKey)
			cancel()
			require.ErrorIs(s, s.store.MarkReleased(s.ctx, worker, noon), store.ErrWorkerBusy, limit.HandlerKey)
			require.Empty(s, claimed)
			release()
			require.NoError(s, <-claimed)
			require.NoError(s, s.store.MarkReleased(s.ctx, worker, noon))
			refs, err := s.store.ClaimsOf(s.ctx, worker, 10)
			require.NoError(s, err)
			require.Len(s, refs, 1)
		}
	}},
}
