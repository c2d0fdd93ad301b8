package inbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// TestPortableProfileIsLoggedAtStartAndHandlesByPolling proves contract 3.4 for two processes with the option: one
// accepts, and the other handles.
func TestPortableProfileIsLoggedAtStartAndHandlesByPolling(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		portable := inbox.Configure(func(o *inbox.Options) {
			o.PortableSQL, o.Processor.PollingInterval = true, 100*time.Millisecond
		})
		accepts := inboxtest.New(t, d.DB, portable, inboxtest.Handlers(nothing("a")))
		log, logs := inboxtest.Observe()
		handles := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), portable, log, inboxtest.Handlers(nothing("a")))
		inboxtest.Start(t, handles)
		notices := logs.FilterMessageSnippet("the portable profile runs").All()
		require.Len(t, notices, 1)
		require.Equal(t, zap.InfoLevel, notices[0].Level)
		require.Equal(t, "option PortableSQL is on", notices[0].ContextMap()["reason"])
		inboxtest.Eventually(t, func() bool {
			return logs.FilterMessageSnippet("notifications cannot arrive").Len() == 1
		}, "the worker says that it polls")

		var batch []handler.RawMessage
		for _, id := range []string{"1", "2", "3"} {
			batch = append(batch, inboxtest.Message(id))
		}
		_, err := accepts.Accept(t.Context(), batch...)
		require.NoError(t, err)
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, handles) }, "all is handled")
		operators, err := handles.Ops()
		require.NoError(t, err)
		workers, err := operators.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, 1)
		require.Empty(t, handles.Health().Reasons, "no role is barred from ending sessions that no one ends")
	})
}
