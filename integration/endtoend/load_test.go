package endtoend

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// underDirectLoad runs disturb while load accepts small batches directly, repeating each until it
// is accepted.
func (r *rig) underDirectLoad(ib *inbox.Inbox, disturb func()) {
	r.t.Helper()
	r.under(disturb, func(ctx context.Context, number int) {
		messages := r.jobs(10, func(i int) workload.Job { return mixed(number*10 + i) })
		ids := make([]string, len(messages))
		for i, m := range messages {
			ids[i] = m.ID
		}
		r.ledger.Produced(ids...)
		for ctx.Err() == nil {
			if _, err := ib.Accept(ctx, messages...); err == nil {
				return
			}
			pause(ctx, 50*time.Millisecond)
		}
	})
}

// underKafkaLoad runs disturb while records are produced, some of them twice and some bad.
func (r *rig) underKafkaLoad(feed *workload.Feed, disturb func()) {
	r.t.Helper()
	r.under(disturb, func(ctx context.Context, number int) {
		r.feed(ctx, feed, 10, number)
	})
}

// feed produces n records.
func (r *rig) feed(ctx context.Context, feed *workload.Feed, n, number int) {
	for i := range n {
		copies := 1
		if i == 5 {
			copies = 2
		}
		feed.Produce(ctx, r.id(), mixed(number*n+i), copies)
	}
	if number%5 == 0 {
		feed.ProduceBad(ctx)
	}
}

// under runs disturb while produce is called repeatedly. It returns after the last call of produce
// has ended, for which it waits a limited time.
func (r *rig) under(disturb func(), produce func(ctx context.Context, number int)) {
	r.t.Helper()
	var load sync.WaitGroup
	stop := make(chan struct{})
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	load.Go(func() {
		ticker := time.NewTicker(r.pace)
		defer ticker.Stop()
		for number := 0; ; number++ {
			produce(ctx, number)
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
		}
	})
	end := sync.OnceFunc(func() {
		close(stop)
		if r.t.Failed() {
			cancel() // a database that is lost would let each load take its whole time
		}
		late := time.AfterFunc(2*patience, cancel)
		defer late.Stop()
		load.Wait()
	})
	defer end() // in case disturb ends the test
	disturb()
	end()
	require.NoError(r.t, ctx.Err(), "what was under way could not be brought to its end")
}
