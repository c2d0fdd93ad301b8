package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// maxKills stays below the service's MaxAbandoned.
const maxKills = 50

// Demonstrate sets everything up, runs it and takes it down again. The ledger
// is nil if there is none to judge; otherwise it counts, whatever the error.
func Demonstrate(ctx context.Context, s Settings, out io.Writer) (ledger *Ledger, err error) {
	lasting := context.WithoutCancel(ctx) // taking down goes on after Ctrl-C
	place, err := program.Place(ctx, s.Postgres)
	if err != nil {
		return nil, err
	}
	defer func() {
		keep := s.Keep || scratch.Failed(ledger, err) && ctx.Err() == nil
		if keep {
			fmt.Fprintln(out, "kept:", place)
		}
		err = errors.Join(err, place.Close(lasting, keep))
	}()
	broker, err := OpenBroker(ctx, s.Kafka, place.Run)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, broker.Close(lasting, s.Keep)) }()
	mails := place.File("mails.log")
	child, err := NewChild(Config{Database: place.DSN, Brokers: broker.Addresses, Topic: broker.Topic, Group: broker.Group,
		Outgoing: mails, Session: broker.Session}, place.File("service.log"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, child.Close()) }()

	fmt.Fprintf(out, "%d records (seed %d) through %s; %s\n", s.Records, s.Seed, broker, place)
	random := rand.New(rand.NewPCG(s.Seed, s.Seed))
	w := &work{events: MakeEvents(s.Records, random), kills: s.Kills, random: random, broker: broker, child: child,
		producer: NewProducer(broker)}
	w.progress = NewProgress(out, place, child, w.producer, statuses(w.events))
	began := time.Now()
	workErr := w.run(ctx)
	took := time.Since(began)

	stopErr := child.Stop(lasting)
	if ctx.Err() != nil {
		return nil, scratch.ErrInterrupted
	}
	// The books are read whatever happened: they show how far things went.
	books, err := ReadBooks(lasting, place, broker, mails)
	if err != nil {
		return nil, errors.Join(workErr, stopErr, err)
	}
	return Balance(w.producer.Journal(), books, s.Kills, took), errors.Join(workErr, stopErr)
}

// statuses is how many the events' orders will have.
func statuses(events []Event) int {
	n := 0
	for _, e := range events {
		if e.Order != nil && !e.Duplicate {
			n += len(HandlerKeys())
		}
	}
	return n
}

// work is what happens between the service's first start and its stop.
type work struct {
	events   []Event
	kills    int
	random   *rand.Rand
	broker   *Broker
	child    *scratch.Process
	producer *Producer
	progress *Progress
}

// run produces everything while the service consumes it, kills the service on
// the way, and waits until nothing is left to do. There is a portion of the
// events for each kill, so that none comes when the work is done already, and
// one for the end.
func (w *work) run(ctx context.Context) error {
	if err := w.child.Start(); err != nil {
		return err
	}
	portion := func(i int) []Event {
		return w.events[len(w.events)*i/(w.kills+1) : len(w.events)*(i+1)/(w.kills+1)]
	}
	var before Tally
	for i := range w.kills {
		if err := w.send(ctx, portion(i), w.moment(before, portion(i))); err != nil {
			return err
		}
		if err := scratch.Pause(ctx, time.Duration(w.random.Int64N(int64(20*time.Millisecond)))); err != nil {
			return err
		}
		var err error
		if before, err = w.crash(ctx, i+1); err != nil {
			return err
		}
	}
	return w.send(ctx, portion(w.kills), w.done)
}

// moment chooses when to kill the service: when it has settled some of a
// portion's statuses, when it has accepted some of its messages, or at any
// time before, which may be while it starts or joins its group.
func (w *work) moment(before Tally, portion []Event) func(context.Context, Tally) (bool, error) {
	messages := int64(statuses(portion) / len(HandlerKeys()))
	settled := before.Settled() + w.random.Int64N(messages+1)*8/10*int64(len(HandlerKeys()))
	accepted := before.Accepted + w.random.Int64N(messages+1)
	at := time.Now().Add(time.Duration(w.random.Int64N(int64(w.broker.Session * 3 / 2))))
	kind := w.random.IntN(3)
	return func(_ context.Context, t Tally) (bool, error) {
		switch {
		case t.Settled() >= settled:
			return true, nil
		case kind == 0:
			return t.Accepted >= accepted, nil
		case kind == 1:
			return time.Now().After(at), nil
		}
		return false, nil
	}
}

// send sends events and, meanwhile, watches the service until it has done
// enough. A failure of either ends both.
func (w *work) send(ctx context.Context, events []Event, enough func(context.Context, Tally) (bool, error)) error {
	return scratch.Meanwhile(ctx,
		func(ctx context.Context) error { return w.producer.Send(ctx, events) },
		func(ctx context.Context) error { return w.progress.Until(ctx, enough) })
}

// done: every status is settled, every offset committed.
func (w *work) done(ctx context.Context, t Tally) (bool, error) {
	if t.Settled() < int64(statuses(w.events)) || w.producer.Produced() < len(w.events) {
		return false, nil
	}
	unread, err := w.broker.Unread(ctx)
	return unread == 0, err
}

// crash kills the service, says in the middle of what, and starts it again.
func (w *work) crash(ctx context.Context, which int) (left Tally, err error) {
	if err := w.child.Kill(); err != nil {
		return left, err
	}
	left, err = ReadTally(ctx, w.progress.place.DB)
	if err != nil {
		return left, err
	}
	unread, err := w.broker.Unread(ctx)
	if err != nil {
		return left, err
	}
	w.progress.Say("killed the service (%d of %d): %d records unread, %d statuses waiting, %d claimed", which, w.kills,
		unread, left.Waiting, left.Claimed)
	return left, w.child.Start()
}
