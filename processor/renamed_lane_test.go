package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

// Contract 5.12: while a rename is rolled out, the next message of a lane may have a key that the program which ended
// the one before does not know. That program leaves it to the others.
func TestOldProgramLeavesNextStatusUnderNewKey(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const lanes = 20
		ran := newLedger()
		competing := inbox.Configure(func(o *inbox.Options) { o.Processor.Mode = processor.ModeCompeting })
		block := make(chan struct{})
		first := inboxtest.Do("old", func(ctx context.Context, m inboxtest.Bytes) error {
			<-block
			return ran.note(ctx, m)
		}, handler.Ordered())
		old := inboxtest.New(t, d.DB, inboxtest.Brisk(), competing, inboxtest.Handlers(first))
		renamed := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), competing,
			inboxtest.Handlers(inboxtest.Do("new", ran.note, handler.Ordered(), handler.LegacyKeys("old"))))
		for lane := range lanes {
			name := fmt.Sprintf("lane%d-", lane)
			_, err := old.Accept(t.Context(), step(name, 1))
			require.NoError(t, err)
			_, err = renamed.Accept(t.Context(), step(name, 2))
			require.NoError(t, err)
		}
		inboxtest.Start(t, old)
		inboxtest.Eventually(t, func() bool { return old.Health().Processor.Busy > 0 }, "the old program runs")
		close(block)
		inboxtest.Eventually(t, func() bool { return old.Counters().Processed == lanes }, "it has run its own")
		inboxtest.Start(t, renamed)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, old) }, "all were completed")
		require.Empty(t, old.Health().Processor.Conditions)
		require.Len(t, ran.runs, 2*lanes)
	})
}

// The program that has renamed the handler is notified: it runs the next message without a poll or a sweep.
func TestNextStatusUnderNewKeyRunsWithoutPoll(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has no notifications
		ran := newLedger()
		patient := inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval, o.Processor.Listen = time.Hour, true
			o.Processor.SweepInterval = time.Hour // sweeps check all lanes
		})
		block := make(chan struct{})
		first := inboxtest.Do("old", func(ctx context.Context, m inboxtest.Bytes) error {
			<-block
			return ran.note(ctx, m)
		}, handler.Ordered())
		old := inboxtest.New(t, d.DB, unhurried(), patient, inboxtest.Handlers(first))
		renamed := inboxtest.New(t, d.Another(t), unhurried(), patient,
			inboxtest.Handlers(inboxtest.Do("new", ran.note, handler.Ordered(), handler.LegacyKeys("old"))))
		startSampled(t, old)
		_, err := old.Accept(t.Context(), step("lane", 1))
		require.NoError(t, err)
		inboxtest.Eventually(t, func() bool { return old.Health().Processor.Busy > 0 }, "the old program runs")
		startSampled(t, renamed)
		for _, m := range []handler.RawMessage{step("lane", 2), step("other", 1)} {
			_, err = renamed.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		inboxtest.Eventually(t, func() bool { return renamed.Counters().Processed == 1 }, "it has passed over the lane")
		pause(t, time.Second) // nothing else that wakes it is left
		close(block)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, old) }, "both were completed")
	})
}
