package groups

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/ops"
)

const (
	largeAcceptEmpty  = "accept, empty tables"
	largeAccept       = "accept, large tables"
	largeProcessEmpty = "process, empty tables"
	largeProcess      = "process, large tables"
)

// Large measures accepting, processing and what operators open beside that many completed messages. It is not among
// All, because filling the tables takes long and tens of gigabytes.
func Large(messages int) trial.Group {
	const calls = 200
	g := trial.Group{
		Name: "large", Unit: "message or look",
		About: fmt.Sprintf("in empty tables, and beside %d million completed messages of 100 bytes with one status each, IDs in "+
			"time order, with 10,000 poisoned and 10,000 failing statuses, 10,000 rejected messages and 10,000 audit rows; "+
			"%d looks in each round (`go run -C bench . -messages %d`)", messages/1_000_000, calls, messages),
		Shared: func(ctx context.Context, lab *trial.Lab) (io.Closer, error) {
			s := &stuckInbox{calls: calls, ordered: true, handlers: 1, completed: lab.Scale(messages, messages)}
			began := time.Now()
			if err := s.prepare(ctx, lab); err != nil {
				return s, err
			}
			disk, err := s.ib.Disk(ctx)
			fmt.Fprintf(lab.Log, "%s  %d messages loaded in %.0f s, %.0f bytes of disk each\n", time.Now().Format("15:04:05"),
				s.completed, time.Since(began).Seconds(), disk/float64(s.completed))
			return s, err
		},
		Variants: []trial.Variant{
			{Name: largeAcceptEmpty, New: bigAccept(true, false)},
			{Name: largeAccept, New: bigAccept(true, true)},
			{Name: largeProcessEmpty, New: bigProcess(true, false)},
			{Name: largeProcess, New: bigProcess(true, true)},
		},
		Lines: []trial.Line{
			trial.Ratio("large_accept_vs_empty", largeAccept, largeAcceptEmpty, 0.85).Times(2),
			trial.Ratio("large_process_vs_empty", largeProcess, largeProcessEmpty, 0.9).Times(2),
		},
	}
	return withLooks(g, "large", slices.Concat(looks, morePages), 50)
}

// morePages are the pages that no other group opens.
var morePages = []look{
	{"one handler", 1, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		h, err := o.Handler(ctx, "bench-handler-1")
		return int(h.Poisoned.N), err
	}},
	{"one message's beginning, with its audit row", 1, func(ctx context.Context, o *ops.Ops, s *stuckInbox) (int, error) {
		m, err := o.PreviewMessage(ctx, benchOperator, ops.MessageRef{ID: s.message}, ops.PreviewBounds{Content: 1000})
		return len(m.Statuses), err
	}},
	{"list, completed, of one handler", 50, listed(ops.Filter{States: []ops.State{ops.StateCompleted},
		HandlerKeys: []string{"bench-handler-1"}})},
	{"search, type that all have", 50, listed(ops.Filter{Type: ours.Type})},
	{"markers of a message", 0, func(ctx context.Context, o *ops.Ops, s *stuckInbox) (int, error) {
		markers, err := o.Markers(ctx, s.message, "", "")
		return len(markers), err
	}},
	{"gaps", 0, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		page, err := o.ListGaps(ctx, "", 0)
		return len(page.Items), err
	}},
}
