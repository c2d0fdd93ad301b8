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

// Demonstrate sets everything up, runs it and takes it down again. The ledger is
// nil if there is none to judge; otherwise it counts, whatever the error.
func Demonstrate(ctx context.Context, s Settings, out io.Writer) (ledger *Ledger, err error) {
	lasting := context.WithoutCancel(ctx) // taking down goes on after Ctrl-C
	place, err := program.Place(ctx, s.Postgres)
	if err != nil {
		return nil, err
	}
	keys := program.Name + "_" + place.Run
	defer func() {
		keep := s.Keep || scratch.Failed(ledger, err) && ctx.Err() == nil
		if keep {
			fmt.Fprintln(out, "kept:", place)
		}
		if s.Redis != "" && !keep {
			err = errors.Join(err, RemoveMarkers(lasting, s.Redis, keys))
		}
		err = errors.Join(err, place.Close(lasting, keep))
	}()
	if err := errors.Join(MakeTables(ctx, place.DB), OpenAccounts(ctx, place.DB, accounts)); err != nil {
		return nil, err
	}
	markers, err := OpenMarkers(place.DB, s.Redis, keys)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, markers.Close()) }()
	random := rand.New(rand.NewPCG(s.Seed, s.Seed))
	payments := MakePayments(s.Messages, random)
	deliveries := MakeDeliveries(payments, random)
	transport, err := NewTransport(deliveries, MakeKills(s.Kills, len(deliveries), random))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, transport.Close()) }()
	team, err := scratch.NewTeam(place, s.Workers, func(name string) []string {
		return Config{Name: name, Transport: transport.Address(), Database: place.DSN, Calls: place.File(callsFile),
			Redis: s.Redis, Run: keys}.Env()
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, team.Close()) }()

	where := "the database"
	if s.Redis != "" {
		where = "Redis under " + keys + ":*"
	}
	fmt.Fprintf(out, "%d payments in %d deliveries (seed %d), %d workers with %d consumers each; markers in %s; %s\n",
		len(payments), len(deliveries), s.Seed, s.Workers, consumers, where, place)
	began := time.Now()
	workErr := deliver(ctx, transport, team, len(deliveries), out)
	took := time.Since(began)
	stopErr := team.Stop(lasting)
	if ctx.Err() != nil {
		return nil, scratch.ErrInterrupted
	}
	// The books are read whatever happened: they show how far things went.
	books, err := ReadBooks(lasting, place, markers, payments)
	if err != nil {
		return nil, errors.Join(workErr, stopErr, err)
	}
	seen := transport.Seen()
	fmt.Fprintf(out, "%.1f seconds; %d of %d deliveries were refused and came again\n", took.Seconds(), seen.Refused,
		seen.Sent)
	return Balance(payments, books, seen, s.Redis != ""), errors.Join(workErr, stopErr)
}

// deliver runs the workers, starting those again that kill themselves, until all
// deliveries are acknowledged.
func deliver(ctx context.Context, transport *Transport, team scratch.Team, deliveries int, out io.Writer) error {
	if err := team.Start(); err != nil {
		return err
	}
	screen := scratch.NewScreen(out)
	read := func(context.Context) (int, error) { return transport.Seen().Total, nil }
	return scratch.Watch(ctx, read, func(total int) (bool, error) {
		screen.Show("acknowledged %d of %d", total, deliveries)
		err := team.Revive(func(w *scratch.Process) {
			if killed := transport.Seen().Killed; len(killed) > 0 {
				screen.Say("%s killed itself (%d): %s", w.Name, len(killed), killed[len(killed)-1])
			}
			transport.Buried()
		})
		// What a dying worker had may be done by others before it has ended: told to
		// stop meanwhile it would seem to have failed.
		return total == deliveries && !transport.Seen().Killing, err
	})
}
