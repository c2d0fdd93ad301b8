package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// elsewhere accepts n messages in another process, each after the previous one has run, and returns
// how long they waited on average; a single one may be short by chance. The first two only show the
// worker that another process accepts and do not count. If each message waits for a poll, the
// average is about the time between polls.
func elsewhere(t *testing.T, other *inbox.Inbox, got <-chan string, n int) time.Duration {
	t.Helper()
	const shown = 2
	var waited time.Duration
	for i := range n {
		id := fmt.Sprintf("m %d", i)
		inboxtest.Accept(t, other, id)
		accepted := time.Now()
		require.Equal(t, id, inboxtest.Receive(t, got, "what another process accepted"))
		if i >= shown {
			waited += time.Since(accepted)
		}
	}
	return waited / time.Duration(n-shown)
}

// rarely makes sweeps so rare that no routine reconciliation finds the work that polls must find.
func rarely() inbox.Option {
	return inbox.Configure(func(o *inbox.Options) { o.Processor.SweepInterval = time.Hour })
}

// Contract 5.1: a status that is retried more often than the polling interval neither stops the
// polls nor keeps them from becoming more frequent.
func TestPollsSpeedUpDespiteFrequentRetries(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has one worker at a time
		const interval, again, messages = 6 * time.Second, 4500 * time.Millisecond, 8
		arriving, got := arrivals()
		snoozing := inboxtest.Do("b", func(context.Context, inboxtest.Bytes) error { return handler.Snooze(again) })
		worker := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = interval
		}), rarely(),
			inboxtest.Handlers(arriving, snoozing))
		inboxtest.Accept(t, inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("b", inboxtest.Nothing))),
			"retried")
		inboxtest.Start(t, worker)
		other := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		// Claims for the retry are 4.5 s apart, polls that do not become more frequent 6 s.
		require.Less(t, elsewhere(t, other, got, messages), again/5)
	})
}

// Contract 5.1: if due times are closer together than polls, the claims for them find what another
// process accepts, and polls become more frequent then, too.
func TestNewWorkFoundAtADueTimeSpeedsUpPolls(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has one worker at a time
		const again, messages = 3 * time.Second, 8
		arriving, got := arrivals()
		snoozing := inboxtest.Do("b", func(context.Context, inboxtest.Bytes) error { return handler.Snooze(again) })
		worker := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = time.Hour
		}), rarely(),
			inboxtest.Handlers(arriving, snoozing))
		inboxtest.Accept(t, inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("b", inboxtest.Nothing))),
			"retried")
		inboxtest.Start(t, worker)
		other := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		require.Less(t, elsewhere(t, other, got, messages), again/3)
	})
}

// Contract 5.1: a process that keeps waking itself for one handler learns nothing about what others
// accept for another handler.
func TestPollsSpeedUpDespiteAcceptsForAnotherHandler(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) { // SQLite has one writer at a time
		const interval, messages = 4 * time.Second, 8
		handler, got := arrivals()
		worker := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Processor.PollingInterval = interval
		}), rarely(),
			inbox.Channel("c", inbox.On("t", handler), inbox.On("own", inboxtest.Do("b", inboxtest.Nothing))))
		other := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing)))
		inboxtest.Start(t, worker)

		ctx, cancel := context.WithCancel(t.Context())
		const publishers = 4
		done := make(chan struct{}, publishers)
		defer func() {
			cancel()
			for range publishers {
				<-done
			}
		}()
		for p := range publishers {
			go func() {
				defer func() { done <- struct{}{} }()
				for n := 0; ctx.Err() == nil; n++ {
					m := inboxtest.Message(fmt.Sprintf("own %d %d", p, n))
					m.Type = "own"
					var receipt *acceptor.Receipt
					if d.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
						receipt, err = worker.AcceptTx(ctx, tx, m)
						return err
					}) == nil {
						receipt.Wake()
					}
				}
			}()
		}
		require.Less(t, elsewhere(t, other, got, messages), interval/3)
	})
}
