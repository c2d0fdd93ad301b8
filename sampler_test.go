package inbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestFailingBacklogQueryLogsStartAndRecovery(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, log, inbox.Configure(func(o *inbox.Options) {
			o.SampleInterval = 10 * time.Millisecond
		}), inboxtest.Handlers(nothing("h")))
		inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return !ib.Health().SampledAt.IsZero() }, "a sample is taken")
		lines := func() (messages []string) {
			for _, entry := range logs.FilterField(zap.String("condition", "backlog query")).All() {
				messages = append(messages, entry.Level.String()+" "+entry.Message)
			}
			return messages
		}
		require.Empty(t, lines())

		inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_handler_statuses RENAME TO away`)
		inboxtest.Eventually(t, func() bool { return len(lines()) > 0 }, "the failure is logged")
		inboxtest.Exec(t, d.DB, `ALTER TABLE away RENAME TO inbox_handler_statuses`)
		inboxtest.Eventually(t, func() bool { return len(lines()) > 1 }, "the recovery is logged")
		require.Equal(t, []string{"warn inbox: backlog query failing: gauges and health have no current samples",
			"info inbox: backlog query recovered"}, lines())
	})
}
