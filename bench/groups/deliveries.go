package groups

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

// twiceOf sets how many messages are delivered twice: one in twiceOf.
const twiceOf = 5

// again is when a message is delivered the second time.
type again bool

const (
	atTheSameMoment again = false
	later           again = true // when the first delivery has ended
)

// deliveries simulates a transport that delivers n messages, each again until it is handled without
// an error.
type deliveries struct {
	messages int
	ids      []string
	calls    atomic.Int64 // of the handler
	refused  atomic.Int64
}

func newDeliveries(n int, when again) *deliveries {
	d := &deliveries{messages: n}
	var second []string
	for i, m := range ours.Messages(n) {
		d.ids = append(d.ids, m.ID)
		switch {
		case i%twiceOf != 0:
		case when == later:
			second = append(second, m.ID)
		default:
			d.ids = append(d.ids, m.ID)
		}
	}
	d.ids = append(d.ids, second...)
	return d
}

// maxTries is how often a delivery may fail. More failures cannot be a coincidence.
const maxTries = 10

// to delivers them to handle, atOnce of them concurrently.
func (d *deliveries) to(ctx context.Context, atOnce int, handle func(ctx context.Context, id string) error) error {
	return trial.InBatches(ctx, len(d.ids), 1, atOnce, func(ctx context.Context, i, _ int) error {
		for try := 1; ; try++ {
			err := handle(ctx, d.ids[i])
			if err == nil {
				return nil
			}
			if try == maxTries || ctx.Err() != nil {
				return fmt.Errorf("delivery of %s failed %d times: %w", d.ids[i], try, err)
			}
			d.refused.Add(1)
		}
	})
}

// figures returns what distinguishes the ways besides their speed, per thousand messages: effects
// beyond one, handler calls beyond one, and repeated deliveries.
func (d *deliveries) figures(effects int) map[string]float64 {
	perThousand := func(n int) float64 { return 1000 * float64(n) / float64(d.messages) }
	return map[string]float64{
		"doubled_per_1000": perThousand(effects - d.messages),
		"reruns_per_1000":  perThousand(int(d.calls.Load()) - d.messages),
		"refused_per_1000": perThousand(int(d.refused.Load())),
	}
}
