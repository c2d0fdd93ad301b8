package processor_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestFullBatchOfResultsDoesNotWaitForTheGroupWindow(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		called := make(chan string, 1)
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.BatchSize(4), inbox.GroupWindow(time.Hour), inboxtest.Handlers(
			inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error { called <- m.ID; return nil })))
		inboxtest.Start(t, ib)
		for i := range 6 { // one by one; the first may be stored at once, the second waits for others
			inboxtest.Accept(t, ib, strconv.Itoa(i))
			inboxtest.Receive(t, called, "the call")
		}
		inboxtest.Eventually(t, func() bool { return ib.Counters().Processed >= 4 }, "a full batch is stored")
	})
}
