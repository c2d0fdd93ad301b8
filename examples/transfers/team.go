package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// roleVariable tells the program, in a process of its own, to be a worker.
const roleVariable = "TRANSFERS_ROLE"

// Worker is one in a process of its own.
type Worker struct {
	*scratch.Process
	cfg Config
}

// Start starts the worker.
func (w *Worker) Start() error {
	return w.Process.Start(append(w.cfg.Env(), roleVariable+"=worker")...)
}

// Team is the workers.
type Team []*Worker

// NewTeam prepares n workers.
func NewTeam(n int, place *scratch.Place, group int) (team Team, err error) {
	for i := range n {
		name := fmt.Sprintf("worker-%d", i+1)
		process, err := scratch.NewProcess(name, place.File(name+".log"))
		if err != nil {
			return nil, errors.Join(err, team.Close())
		}
		team = append(team, &Worker{process, Config{Name: name, Database: place.DSN, Calls: place.File(callsFile), Group: group}})
	}
	return team, nil
}

// Start starts all.
func (t Team) Start() error {
	for _, w := range t {
		if err := w.Start(); err != nil {
			return err
		}
	}
	return nil
}

// named returns the worker of that name, or another if there is none.
func (t Team) named(name string, other *Worker) *Worker {
	for _, w := range t {
		if w.Name == name {
			return w
		}
	}
	return other
}

// unexpected is the error of the first worker that ended without being told
// to; nil if none did.
func (t Team) unexpected() error {
	for _, w := range t {
		if err := w.Unexpected(); err != nil {
			return err
		}
	}
	return nil
}

// Stop stops all at once and waits for them.
func (t Team) Stop(ctx context.Context) error {
	problems := make([]error, len(t))
	var stopping sync.WaitGroup
	for i, w := range t {
		stopping.Go(func() { problems[i] = w.Stop(ctx) })
	}
	stopping.Wait()
	return errors.Join(problems...)
}

// Close ends those that still run, and closes their logs.
func (t Team) Close() error {
	var problems []error
	for _, w := range t {
		problems = append(problems, w.Close())
	}
	return errors.Join(problems...)
}
