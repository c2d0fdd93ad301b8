package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestLostClaimsAreAllFoundHoweverMany(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const lost = 600 // more than one look takes
		db, gate := gated(t, d)
		ib := inboxtest.New(t, db, unhurried(), inbox.StatementTimeout(8*time.Second), inbox.Prefetch(lost), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Start(t, ib)
		settleDown(t, ib)
		messages := make([]inbox.RawMessage, lost)
		for i := range messages {
			messages[i] = inboxtest.Message(fmt.Sprint(i))
		}
		gate.lose()
		_, err := ib.Accept(context.Background(), messages...)
		require.ErrorIs(t, err, errLost)
		var claimed int64
		require.NoError(t, ib.DB().Scopes(ib.Statuses).Where("worker_id IS NOT NULL").Count(&claimed).Error)
		require.Greater(t, claimed, int64(500))
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, ib) }, "all are found, and completed")
		require.Zero(t, ib.Counters().Fenced)
	})
}
