package main

import (
	"context"
	"io"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// Progress watches the service's database and shows how far it is.
type Progress struct {
	*scratch.Screen
	place    *scratch.Place
	child    *scratch.Process
	producer *Producer
	statuses int // of all orders together
}

// NewProgress makes a progress; statuses is how many there will be.
func NewProgress(
	out io.Writer, place *scratch.Place, child *scratch.Process, producer *Producer, statuses int,
) *Progress {
	return &Progress{Screen: scratch.NewScreen(out), place: place, child: child, producer: producer, statuses: statuses}
}

// Until watches until enough says so. It fails if the service ends by itself
// or nothing changes any more.
func (p *Progress) Until(ctx context.Context, enough func(context.Context, Tally) (bool, error)) error {
	read := func(ctx context.Context) (Tally, error) { return ReadTally(ctx, p.place.DB) }
	return scratch.Watch(ctx, read, func(t Tally) (bool, error) {
		p.Show("produced %d, accepted %d, rejected %d, completed %d of %d, retrying %d, poisoned %d",
			p.producer.Produced(), t.Accepted, t.Rejected, t.Completed, p.statuses, t.Retrying, t.Poisoned)
		if done, err := enough(ctx, t); done || err != nil {
			return done, err
		}
		return false, p.child.Unexpected()
	})
}
