// Command soak runs consumer replicas and a process that only cleans, with a short Retention, on a
// real database and a real Kafka of two brokers under load for some minutes, and disturbs all three.
// A schedule inflicts every kind of disturbance once, which takes about four minutes. After that they
// are chosen at random. At the end it checks the ledger, which keeps what cleanup deletes: is anything
// missing, doubled or out of order, and did a committed offset move back or pass a record that was not
// stored?
//
//	go run ./soak -minutes 5 -seed 7
//	go run ./soak -minutes 5 -seed 7 -database mariadb
//	go run ./soak -minutes 10 -seed 7 -database patroni
//	go run ./soak -minutes 5 -seed 7 -database sqlite -rate 30   processes that share a file
//	go run ./soak -minutes 60 -seed 7 -page              also adds the run to docs/ledger.md
//	go run ./mutants -soak -json | go run ./soak -controls -new   writes there which defects the judge finds
//
// It prints a line per event and a ledger line every few seconds. At the end it prints one "name:
// value" line for each figure and each kind of disturbance: how often it was done, and how often its
// effect was seen. The seed decides what happens and in which order, but not the exact times. The exit
// status is 0 only if no promise was broken, nothing is pending and every kind of disturbance had its
// effect. What the machine lacks is left out by name.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// options are what one run is told.
type options struct {
	product       product
	lasts         time.Duration
	seed          uint64
	rate, workers int
	harms         *regexp.Regexp
}

func main() {
	workload.MainIfWorker()
	minutes := flag.Float64("minutes", 5, "how long to disturb")
	seed := flag.Uint64("seed", 1, "decides what happens")
	rate := flag.Int("rate", 150, "messages per second")
	workers := flag.Int("workers", 2, "consumer replicas")
	name := flag.String("database", "postgres", "postgres, partitions, patroni, mariadb, mysql or sqlite")
	harms := flag.String("harms", "", "only disturbances whose name matches this `expression`")
	publishes := flag.Bool("page", false, "add the run to docs/ledger.md")
	anew := flag.Bool("new", false, "with -page or -controls: drop the runs or the controls that the page has")
	controls := flag.Bool("controls", false, "write the controls' events, read from standard input, to docs/ledger.md")
	flag.Parse()
	product, unknown := productNamed(*name)
	only, invalid := regexp.Compile(*harms)
	if err := errors.Join(unknown, invalid); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(2)
	}
	if *minutes <= 0 || *rate < 10 || *workers < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "soak: minutes must be positive, rate 10 or more, workers 1 or more; no further arguments")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *controls {
		exit(true, addControls(ctx, *anew))
	}
	useOwnMounts()
	at, err := "", error(nil)
	if *publishes {
		if at, err = commit(ctx); err != nil {
			exit(false, err)
		}
	}
	r, err := run(ctx, options{product, time.Duration(*minutes * float64(time.Minute)), *seed, *rate, *workers, only})
	if err == nil && *publishes {
		r.Commit = at
		err = addRun(r, *anew)
	}
	exit(len(r.broken())+len(r.idle()) == 0, err)
}

// exit ends the process with a status that is 0 only if all is well.
func exit(whole bool, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
	}
	if err != nil || !whole {
		os.Exit(1)
	}
	os.Exit(0)
}

// addRun adds a run to the page.
func addRun(r record, anew bool) error {
	h, err := readHistory(historyFile)
	if err != nil {
		return err
	}
	if anew {
		h.Runs = nil
	}
	h.Runs = append(h.Runs, r)
	return publish(h)
}

// addControls adds controls to the page, each in the place of an earlier one of its name. If anew, it drops all others.
func addControls(ctx context.Context, anew bool) error {
	found, err := readControls(json.NewDecoder(os.Stdin))
	if err != nil {
		return err
	}
	h, err := readHistory(historyFile)
	if err != nil {
		return err
	}
	at, err := commit(ctx)
	if err != nil {
		return err
	}
	if anew {
		h.Controls = nil
	}
	for _, c := range found {
		c.Date, c.Commit = today(), at
		if i := slices.IndexFunc(h.Controls, func(earlier control) bool { return earlier.Name == c.Name }); i >= 0 {
			h.Controls[i] = c
		} else {
			h.Controls = append(h.Controls, c)
		}
	}
	return publish(h)
}

// overrun is how much longer the schedule may take on a slow machine.
const overrun = 20 * time.Second

// run soaks until the time is over or ctx ends, and judges. An error means that the soak itself
// failed and there is no result.
func run(ctx context.Context, o options) (r record, err error) {
	w, err := newWorld(ctx, o.product, o.seed)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, w.close(err == nil && len(r.broken()) == 0)) }()
	fleet := newFleet(w, o.workers)
	defer fleet.kill()
	l, err := newLoad(w, o.rate)
	if err != nil {
		return r, err
	}
	defer l.close()

	began := time.Now()
	timed, cancel := context.WithTimeout(ctx, o.lasts)
	defer cancel()
	schedule, cancel := context.WithTimeout(ctx, o.lasts+overrun)
	defer cancel()
	load, endLoad := context.WithCancel(ctx)
	defer endLoad()
	report, endReport := context.WithCancel(context.Background())
	var loading, reporting sync.WaitGroup
	loading.Go(func() { l.run(load) })
	reporting.Go(func() { w.reportProgress(report) })
	keep, endKeep := context.WithCancel(context.Background())
	defer endKeep()
	reporting.Go(func() { w.keepPooler(keep) })
	reporting.Go(func() { w.keepJudging(keep) })
	tracks := w.tracks(fleet, l, o.harms)
	matrix := newMatrix(tracks)
	matrix.disturb(timed, schedule, o.seed, tracks) // returns after all servers are up again
	disturbed := time.Since(began)
	endLoad()
	loading.Wait()
	w.logf("the disturbances are over, waiting for what is left")
	unsettled := w.settle(l)
	stopped := fleet.stop()
	endReport()
	endKeep()
	reporting.Wait()
	r = record{Date: today(), Command: command(), Database: o.product.title, Seed: o.seed, Minutes: disturbed.Minutes(),
		Rate: o.rate, Workers: o.workers, Harms: matrix.tallies(), LeftOut: w.leftOut}
	if r.Versions, err = w.versions(); err != nil {
		return r, err
	}
	if r.Figures, err = w.judge(fleet, l, stopped); err != nil {
		return r, errors.Join(unsettled, err)
	}
	if unsettled != nil {
		w.logf("%v", unsettled)
		r.Figures["unsettled"] = 1
	}
	r.print()
	if idle := r.idle(); len(idle) > 0 {
		w.logf("never happened, or was never felt: %s", strings.Join(idle, ", "))
	}
	if broken := r.broken(); len(broken) > 0 {
		w.logf("%s%s", brokenLine, strings.Join(broken, ", "))
	}
	return r, nil
}

// brokenLine begins the list of promises that were broken. The mutants report what follows it.
const brokenLine = "BROKEN: "

// command returns the command line of a run, without the program's place.
func command() string {
	return strings.Join(append([]string{"go run -C integration ./soak"}, os.Args[1:]...), " ")
}
