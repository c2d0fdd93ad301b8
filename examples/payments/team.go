package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// roleVariable tells the program, in a process of its own, to be a worker.
const roleVariable = "PAYMENTS_ROLE"

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

// NewTeam prepares n workers, which differ in their names.
func NewTeam(n int, place *scratch.Place, cfg Config) (team Team, err error) {
	for i := range n {
		cfg.Name = fmt.Sprintf("worker-%d", i+1)
		process, err := scratch.NewProcess(cfg.Name, place.File(cfg.Name+".log"))
		if err != nil {
			return nil, errors.Join(err, team.Close())
		}
		team = append(team, &Worker{process, cfg})
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

// Revive starts those again that have killed themselves, after buried was called
// for each. Any other end is an error.
func (t Team) Revive(buried func(w *Worker)) error {
	for _, w := range t {
		switch {
		case !w.Exited():
			continue
		case !w.KilledItself():
			return w.Unexpected()
		}
		buried(w)
		if err := w.Start(); err != nil {
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
