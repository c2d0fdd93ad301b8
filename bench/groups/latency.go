package groups

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/peers/river"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/handler"
)

// latencyRate is how many messages are accepted per second, one at a time.
const latencyRate = 200

const (
	sameProcess = "accepted in the same process"
	elsewhere   = "accepted elsewhere"
)

// Latency measures how soon a handler starts. The rate is fixed, so the further figures are the
// result.
func Latency() trial.Group {
	return trial.Group{
		Name: "latency", Unit: "message",
		About: fmt.Sprintf("from when a message is due to be accepted, or a job inserted, until its handler "+
			"starts, at %d a second with nothing else pending", latencyRate),
		Variants: []trial.Variant{
			{Name: sameProcess, New: latencySame},
			{Name: elsewhere, New: latencyElsewhere()},
			{Name: "accepted elsewhere, polled every 20 ms", New: latencyElsewhere(polled(20 * time.Millisecond))},
			{Name: "accepted elsewhere, polled every second", New: latencyElsewhere(polled(time.Second))},
			{Name: "River, defaults", New: latencyRiver(river.Default())},
			{Name: "River, 500 workers", New: latencyRiver(river.Bench(500))},
		},
		Lines: []trial.Line{
			trial.Value("pickup_p99_ms", sameProcess, "p99_ms", 10),
			trial.Value("pickup_elsewhere_p99_ms", elsewhere, "p99_ms", 10),
		},
	}
}

// polled returns the options of a worker that is not notified.
func polled(interval time.Duration) inbox.Option {
	return inbox.Configure(func(o *inbox.Options) { o.Processor.Listen, o.Processor.PollingInterval = false, interval })
}

// latencySame accepts in the process that handles, which wakes its handlers up.
func latencySame(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
	watch := newStopwatch(env)
	ib, err := ours.OpenWith(ctx, env.DSN, watch.handler)
	if err != nil {
		return nil, err
	}
	return watch.trial(ctx, ib, ib, ib.Close)
}

// latencyElsewhere accepts with an inbox that is not started, like another process.
func latencyElsewhere(options ...inbox.Option) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		watch := newStopwatch(env)
		from, err := ours.OpenWith(ctx, env.DSN, watch.handler, options...)
		if err != nil {
			return nil, err
		}
		to, err := ours.OpenWith(ctx, env.DSN, watch.handler, options...)
		if err != nil {
			return nil, err
		}
		return watch.trial(ctx, from, to, func() { from.Close(); to.Close() })
	}
}

// latencyRiver inserts and works in the same process. River always announces jobs with
// LISTEN/NOTIFY.
func latencyRiver(s river.Settings) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		watch := newStopwatch(env)
		s.Started = func(payload []byte) { watch.start(int(binary.BigEndian.Uint64(payload))) }
		r, err := river.Open(ctx, env.DSN, s)
		if err != nil {
			return nil, err
		}
		n := len(watch.messages)
		if err := r.Start(ctx, n); err != nil {
			r.Close()
			return nil, err
		}
		t := &trial.Trial{Count: n, Close: r.Close}
		t.Run = func(ctx context.Context) error {
			err := watch.run(ctx, func(ctx context.Context, i int) error {
				payload := slices.Clone(ours.Payload)
				binary.BigEndian.PutUint64(payload, uint64(i))
				return r.InsertOne(ctx, payload)
			})
			if err != nil {
				return err
			}
			t.Values = watch.figures()
			return r.Completed(ctx, n)
		}
		t.Check = func(ctx context.Context) error { return r.CheckStored(ctx, n, n) }
		return t, nil
	}
}

// stopwatch measures the time from when a message is due until its handler starts.
type stopwatch struct {
	messages []handler.RawMessage
	number   map[string]int // a message's index by its ID
	base     time.Time
	// Both are times after base. due is the schedule of run, so a stall counts for each message
	// that had to wait for it.
	due     []time.Duration
	started []atomic.Int64 // in nanoseconds; zero until the handler has started
	missing atomic.Int64
	all     chan struct{} // closed when every handler has started
}

func newStopwatch(env *trial.Env) *stopwatch {
	n := env.Scale(4*latencyRate, 2*latencyRate)
	if env.Tiny {
		n = latencyRate / 4 // the rate is fixed, so more messages take longer
	}
	w := &stopwatch{messages: ours.Messages(n), number: make(map[string]int, n), base: time.Now(),
		due: make([]time.Duration, n), started: make([]atomic.Int64, n), all: make(chan struct{})}
	for i, m := range w.messages {
		w.number[m.ID] = i
	}
	w.missing.Store(int64(n))
	return w
}

func (w *stopwatch) handler(called func()) []*inbox.HandlerSpec {
	return []*inbox.HandlerSpec{inbox.Func("bench-handler-1", func(_ context.Context, m handler.Message[[]byte]) error {
		called()
		w.start(w.number[m.ID])
		return nil
	})}
}

// start records that the handler of message i has started.
func (w *stopwatch) start(i int) {
	if w.started[i].CompareAndSwap(0, int64(time.Since(w.base))) && w.missing.Add(-1) == 0 {
		close(w.all)
	}
}

// run accepts one message after the other on a fixed schedule. A late message does not delay the
// schedule, so slow accepts do not lower the rate.
func (w *stopwatch) run(ctx context.Context, accept func(ctx context.Context, i int) error) error {
	const every = time.Second / latencyRate
	began := time.Since(w.base)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range w.messages {
		w.due[i] = began + time.Duration(i)*every
		timer.Reset(w.due[i] - time.Since(w.base))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		if err := accept(ctx, i); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%d handlers have not started: %w", w.missing.Load(), ctx.Err())
	case <-w.all:
		return nil
	}
}

// figures returns the percentiles of all messages.
func (w *stopwatch) figures() map[string]float64 {
	waits := make([]float64, len(w.messages))
	for i := range waits {
		waits[i] = float64(w.started[i].Load()-int64(w.due[i])) / float64(time.Millisecond)
	}
	slices.Sort(waits)
	return map[string]float64{"p50_ms": percentile(waits, 50), "p99_ms": percentile(waits, 99),
		"max_ms": waits[len(waits)-1]}
}

// percentile returns a percentile of sorted values, by the nearest rank.
func percentile(sorted []float64, p int) float64 {
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// trial accepts with one inbox and handles with another or the same.
func (w *stopwatch) trial(ctx context.Context, from, to *ours.Inbox, end func()) (*trial.Trial, error) {
	if err := to.Start(ctx); err != nil {
		end()
		return nil, err
	}
	t := &trial.Trial{Count: len(w.messages), Close: end}
	t.Run = func(ctx context.Context) error {
		err := w.run(ctx, func(ctx context.Context, i int) error {
			_, err := from.Accept(ctx, w.messages[i])
			return err
		})
		if err != nil {
			return err
		}
		t.Values = w.figures()
		return to.Completed(ctx, len(w.messages))
	}
	t.Check = func(ctx context.Context) error {
		return to.CheckStored(ctx, len(w.messages), len(w.messages), len(w.messages))
	}
	return t, nil
}
