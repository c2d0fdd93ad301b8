// Command soak runs consumer replicas and a process that only cleans, with a short Retention, on a
// real database and a real Kafka of two brokers under load for some minutes, and disturbs all three.
// A schedule inflicts every kind of disturbance once, which takes about three minutes. After that they
// are chosen at random. At the end it checks the ledger, which keeps what cleanup deletes: is anything
// missing, doubled or out of order, and did a committed offset move back or pass a record that was not
// stored?
//
//	go run ./soak -minutes 5 -seed 7
//	go run ./soak -minutes 5 -seed 7 -database mariadb
//
// It prints a line per event and a ledger line every few seconds. At the end it prints one "name:
// value" line for each figure and each kind of disturbance. The seed decides what happens and in
// which order, but not the exact times. The exit status is 0 only if no promise was broken, nothing
// is pending and every kind of disturbance happened.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

func main() {
	workload.MainIfWorker()
	minutes := flag.Float64("minutes", 5, "how long to disturb")
	seed := flag.Uint64("seed", 1, "decides what happens")
	rate := flag.Int("rate", 150, "messages per second")
	workers := flag.Int("workers", 2, "consumer replicas")
	name := flag.String("database", "postgres", "postgres, mariadb or mysql")
	flag.Parse()
	product, unknown := productNamed(*name)
	if unknown != nil {
		fmt.Fprintln(os.Stderr, "soak:", unknown)
		os.Exit(2)
	}
	if *minutes <= 0 || *rate < 10 || *workers < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "soak: minutes must be positive, rate 10 or more, workers 1 or more; no further arguments")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	whole, err := run(ctx, product, time.Duration(*minutes*float64(time.Minute)), *seed, *rate, *workers)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
	}
	if err != nil || !whole {
		os.Exit(1)
	}
}

// overrun is how much longer the schedule may take on a slow machine.
const overrun = 20 * time.Second

// run soaks until the time is over or ctx ends, and judges. An error means that the soak itself
// failed and there is no result.
func run(
	ctx context.Context, product product, lasts time.Duration, seed uint64, rate, workers int,
) (whole bool, err error) {
	w, err := newWorld(ctx, product, seed)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, w.close(whole)) }()
	fleet := newFleet(w, workers)
	defer fleet.kill()
	l, err := newLoad(w, rate)
	if err != nil {
		return false, err
	}
	defer l.close()

	began := time.Now()
	timed, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	schedule, cancel := context.WithTimeout(ctx, lasts+overrun)
	defer cancel()
	load, endLoad := context.WithCancel(ctx)
	defer endLoad()
	report, endReport := context.WithCancel(context.Background())
	var loading, reporting sync.WaitGroup
	loading.Go(func() { l.run(load) })
	reporting.Go(func() { w.reportProgress(report) })
	tracks := w.tracks(fleet, l)
	matrix := newMatrix(tracks)
	matrix.disturb(timed, schedule, seed, tracks) // returns after all servers are up again
	endLoad()
	loading.Wait()
	w.logf("the disturbances are over, waiting for what is left")
	unsettled := w.settle(l)
	endReport()
	reporting.Wait()
	stopped := fleet.stop()
	whole, err = w.judge(began, fleet, l, matrix, stopped)
	return whole && unsettled == nil, errors.Join(unsettled, err)
}
