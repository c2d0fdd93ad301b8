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
	random := rand.New(rand.NewPCG(s.Seed, s.Seed))
	transfers := MakeTransfers(s.Transfers, s.Accounts, random)
	opening := OpeningBalance(s.Transfers, s.Accounts)
	if err := OpenAccounts(ctx, place.DB, s.Accounts, opening); err != nil {
		return nil, err
	}
	producer, err := NewProducer(ctx, place.DB, rand.New(rand.NewPCG(s.Seed, 1)))
	if err != nil {
		return nil, err
	}
	team, err := scratch.NewTeam(place, s.Workers, func(name string) []string {
		return Config{Name: name, Database: place.DSN, Calls: place.File(callsFile), Group: s.Group}.Env()
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, team.Close()) }()

	fmt.Fprintf(out, "%d transfers between %d accounts (seed %d), %d workers; %s\n", s.Transfers, s.Accounts, s.Seed,
		s.Workers, place)
	w := &work{transfers: transfers, kills: s.Kills, random: random, place: place, team: team, producer: producer,
		progress: NewProgress(out, place, team, s.Transfers)}
	began := time.Now()
	workErr := w.run(ctx)
	took := time.Since(began)

	stopErr := team.Stop(lasting)
	if ctx.Err() != nil {
		return nil, scratch.ErrInterrupted
	}
	// The books are read whatever happened: they show how far things went.
	books, err := ReadBooks(lasting, place)
	if err != nil {
		return nil, errors.Join(workErr, stopErr, err)
	}
	ledger = Balance(transfers, s.Accounts, opening, books, w.killed)
	fmt.Fprintf(out, "%.1f seconds; %d transfers were accepted again, %d failed before they succeeded, %d were refused\n",
		took.Seconds(), producer.repeated, ledger.Retried, ledger.Refused)
	return ledger, errors.Join(workErr, stopErr)
}

// work is what happens between the workers' first start and their stop.
type work struct {
	transfers []Transfer
	kills     int
	random    *rand.Rand
	place     *scratch.Place
	team      scratch.Team
	producer  *Producer
	progress  *Progress

	killed  int
	settled int64 // completed when the last one was killed
}

// run accepts everything while the workers book it, kills some on the way, and
// waits until nothing is left to do. There is a portion of the transfers for
// each kill, so that none comes when the work is done already, and one for the
// end.
func (w *work) run(ctx context.Context) error {
	if err := w.team.Start(); err != nil {
		return err
	}
	portion := func(i int) []Transfer {
		return w.transfers[len(w.transfers)*i/(w.kills+1) : len(w.transfers)*(i+1)/(w.kills+1)]
	}
	for i := range w.kills {
		if err := w.while(ctx, portion(i), w.crash); err != nil {
			return err
		}
	}
	return w.while(ctx, portion(w.kills), func(ctx context.Context, _ int) error {
		return w.progress.Until(ctx, func(t scratch.Tally) bool { return t.Completed >= int64(len(w.transfers)) })
	})
}

// while accepts transfers and lets something happen to the workers meanwhile,
// which is told how many there are. A failure of either ends both.
func (w *work) while(
	ctx context.Context, transfers []Transfer, happen func(ctx context.Context, transfers int) error,
) error {
	return scratch.Meanwhile(ctx,
		func(ctx context.Context) error { return w.producer.Send(ctx, transfers) },
		func(ctx context.Context) error { return happen(ctx, len(transfers)) })
}

// crash waits for a moment, kills a worker, says in the middle of what, and
// starts it again. Three times in four it is the one that booked last, else
// any.
func (w *work) crash(ctx context.Context, transfers int) error {
	if err := w.progress.Until(ctx, w.moment(transfers)); err != nil {
		return err
	}
	if err := scratch.Pause(ctx, time.Duration(w.random.Int64N(int64(20*time.Millisecond)))); err != nil {
		return err
	}
	victim := w.team[w.random.IntN(len(w.team))]
	if w.random.IntN(4) > 0 {
		busy, err := ReadLastWorker(ctx, w.place.DB)
		if err != nil {
			return err
		}
		victim = named(w.team, busy, victim)
	}
	if err := victim.Kill(); err != nil {
		return err
	}
	w.killed++
	t, err := scratch.ReadTally(ctx, w.place.DB)
	if err != nil {
		return err
	}
	w.settled = t.Completed
	w.progress.Say("killed %s (%d of %d): %d transfers completed, %d waiting, %d claimed", victim.Name, w.killed, w.kills,
		t.Completed, t.Waiting, t.Claimed)
	return victim.Start()
}

// named returns the worker of that name, or another if there is none.
func named(team scratch.Team, name string, other *scratch.Process) *scratch.Process {
	for _, w := range team {
		if w.Name == name {
			return w
		}
	}
	return other
}

// moment chooses when to kill: when, since the last kill, some of so many
// transfers have been completed, or, one time in three, after a while if that
// comes first, which may be while a worker starts or takes over from another.
func (w *work) moment(transfers int) (enough func(scratch.Tally) bool) {
	completed := w.settled + w.random.Int64N(int64(transfers)*8/10+1)
	at := time.Now().Add(time.Hour)
	if w.random.IntN(3) == 0 {
		at = time.Now().Add(time.Duration(w.random.Int64N(int64(3 * time.Second))))
	}
	return func(t scratch.Tally) bool { return t.Completed >= completed || time.Now().After(at) }
}
