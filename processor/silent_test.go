package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
	"github.com/gorm-inbox/inbox/processor"
)

func nothingPlain(context.Context, inboxtest.Bytes) error { return nil }

// logging returns an option that records what an inbox logs.
func logging() (inbox.Option, *observer.ObservedLogs) {
	core, logs := observer.New(zap.InfoLevel)
	return inbox.Configure(func(o *inbox.Options) { o.Logger = zap.New(core) }), logs
}

// Contract 5.9: what a silently lost connection has locked is free after StatementTimeout.
func TestAcceptSucceedsAfterItsCommitWasLost(t *testing.T) {
	for name, c := range map[string]struct {
		fault pgproxy.Fault
		again func(ib, elsewhere *inbox.Inbox) *inbox.Inbox
	}{
		"in the same process": {pgproxy.Silence, func(ib, _ *inbox.Inbox) *inbox.Inbox { return ib }},
		"in another process":  {pgproxy.Silence, func(_, elsewhere *inbox.Inbox) *inbox.Inbox { return elsewhere }},
		"that arrived half":   {pgproxy.SilenceMidway, func(ib, _ *inbox.Inbox) *inbox.Inbox { return ib }},
	} {
		t.Run(name, func(t *testing.T) {
			d, proxy, proxied := behindProxy(t)
			log, logs := logging()
			ib := lossy(t, proxied, log, inboxtest.Handlers(inboxtest.Do("h", nothingPlain)))
			elsewhere := lossy(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", nothingPlain)))
			startSampled(t, ib)
			proxy.LoseCommits(c.fault, 1)
			_, err := ib.Accept(t.Context(), inboxtest.Message("1"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Zero(t, proxy.Left())
			tries := 0
			for ; err != nil; tries++ {
				require.Less(t, tries, 3, "each waits for StatementTimeout")
				_, err = c.again(ib, elsewhere).Accept(t.Context(), inboxtest.Message("1"))
			}
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "it was completed")
			if c.fault == pgproxy.SilenceMidway { // the server did not know, so the session had to be ended
				inboxtest.Eventually(t, func() bool { return logs.FilterMessageSnippet("connections recovered").Len() == 1 },
					"it was ended")
				require.Equal(t, 1, logs.FilterMessageSnippet("connections failing").Len())
			}
		})
	}
}

// Contract 5.5: a result whose row is locked is unsaved, and health says so until it is saved.
func TestHealthReportsHowLongAResultIsUnsaved(t *testing.T) {
	d, _, proxied := behindProxy(t)
	log, logs := logging()
	var lock *gorm.DB
	ib := lossy(t, proxied, log, inboxtest.Handlers(inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
		if m.ID == "locked" {
			lock = d.DB.Begin()
			return lock.Exec("UPDATE inbox_handler_statuses SET version = version WHERE message_id = ?", m.ID).Error
		}
		return nil
	})))
	startSampled(t, ib)
	inboxtest.Accept(t, ib, "locked")
	inboxtest.Eventually(t, func() bool { return logs.FilterMessageSnippet("storing results failing").Len() > 0 },
		"the first try has waited for the lock")
	for i := range 3 { // the results of others are saved meanwhile
		id := string(rune('a' + i))
		inboxtest.Accept(t, ib, id)
		inboxtest.Eventually(t, func() bool { return inboxtest.Status(t, ib, id, "h").CompletedAt != nil },
			"it was completed")
		require.Contains(t, ib.Health().Processor.Conditions, "storing results")
		require.Equal(t, inbox.HealthDegraded, ib.Health().State)
	}
	require.Never(t, func() bool { return ib.Health().State != inbox.HealthDegraded }, 3*time.Second, 20*time.Millisecond)
	require.Zero(t, logs.FilterMessageSnippet("storing results recovered").Len())
	require.ErrorContains(t, ib.Health().Processor.Conditions["storing results"], "locked")
	require.NoError(t, lock.Rollback().Error)
	inboxtest.Eventually(t, func() bool { return ib.Health().State == inbox.HealthHealthy }, "it is saved")
	require.NotNil(t, inboxtest.Status(t, ib, "locked", "h").CompletedAt)
	require.Equal(t, 1, logs.FilterMessageSnippet("storing results recovered").Len())
}

// Contract 3.8: every statement of ours has a deadline, also on connections of which the client does not
// know that they are lost: heartbeats, claims, results, notifications and leases.
func TestWorkContinuesAfterSilentConnectionLoss(t *testing.T) {
	for _, mode := range []processor.Mode{processor.ModeCompeting, processor.ModeExclusive} {
		t.Run(string(mode), func(t *testing.T) {
			d, proxy, proxied := behindProxy(t)
			handlers := inboxtest.Handlers(inboxtest.Tx("tx", nothingTx), inboxtest.Do("plain", nothingPlain))
			ib := lossy(t, proxied, inbox.Configure(func(o *inbox.Options) { o.Processor.Mode = mode }), handlers)
			producer := inboxtest.New(t, d.DB, handlers)
			startSampled(t, ib)
			for i := range 3 {
				inboxtest.Accept(t, producer, fmt.Sprint(i))
				inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, producer) }, "it was completed")
				proxy.FallSilent()
			}
			inboxtest.Accept(t, producer, "last")
			inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, producer) }, "it was completed")
		})
	}
}
