package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// arrivals returns a handler and a channel that receives the IDs of its messages.
func arrivals() (*inbox.HandlerSpec, <-chan string) {
	got := make(chan string, 1000)
	return inboxtest.Do("a", func(_ context.Context, m inboxtest.Bytes) error { got <- m.ID; return nil }), got
}

// Contract 4.7: the poll finds what another process accepts, and while more comes, polls are
// frequent.
func TestPollsSpeedUpWhileAnotherProcessAccepts(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		const interval = 5 * time.Second
		handler, got := arrivals()
		worker := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = interval
		}), rarely(),
			inboxtest.Handlers(handler))
		other := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		inboxtest.Start(t, worker)
		inboxtest.Accept(t, worker, "awake") // and idle from now on
		require.Equal(t, "awake", inboxtest.Receive(t, got, "what was accepted here"))

		for _, id := range []string{"first", "second"} { // the first may be found by the claim of what was accepted here
			inboxtest.Accept(t, other, id)
			require.Equal(t, id, inboxtest.Receive(t, got, "the poll"))
		}
		// All waits are added up: a single one may be short by chance, if the claim after a poll
		// finds the next message.
		const more = 5
		var waited time.Duration
		for i := range more {
			id := fmt.Sprintf("next %d", i)
			inboxtest.Accept(t, other, id)
			accepted := time.Now()
			require.Equal(t, id, inboxtest.Receive(t, got, "the next poll"))
			waited += time.Since(accepted)
		}
		require.Less(t, waited, more*interval/2, "polls after one that found work")
	})
}
