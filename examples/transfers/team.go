package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// Team is the workers.
type Team []*Child

// NewTeam prepares n workers.
func NewTeam(n int, place *scratch.Place, group int) (team Team, err error) {
	for i := range n {
		name := fmt.Sprintf("worker-%d", i+1)
		child, err := NewChild(Config{Name: name, Database: place.DSN, Calls: place.File(callsFile), Group: group}, place.File(name+".log"))
		if err != nil {
			return nil, errors.Join(err, team.Close())
		}
		team = append(team, child)
	}
	return team, nil
}

// Start starts all.
func (t Team) Start() error {
	for _, c := range t {
		if err := c.Start(); err != nil {
			return err
		}
	}
	return nil
}

// named returns the worker of that name, or another if there is none.
func (t Team) named(name string, other *Child) *Child {
	for _, c := range t {
		if c.cfg.Name == name {
			return c
		}
	}
	return other
}

// unexpected is the error of the first worker that ended without being told
// to; nil if none did.
func (t Team) unexpected() error {
	for _, c := range t {
		if c.Exited() {
			return c.unexpected()
		}
	}
	return nil
}

// Stop stops all at once and waits for them.
func (t Team) Stop(ctx context.Context) error {
	problems := make([]error, len(t))
	var stopping sync.WaitGroup
	for i, c := range t {
		stopping.Go(func() { problems[i] = c.Stop(ctx) })
	}
	stopping.Wait()
	return errors.Join(problems...)
}

// Close ends those that still run, and closes their logs.
func (t Team) Close() error {
	var problems []error
	for _, c := range t {
		problems = append(problems, c.Close())
	}
	return errors.Join(problems...)
}
