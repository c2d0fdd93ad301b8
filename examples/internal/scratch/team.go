package scratch

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Team is workers that are alike but for their names. It has one owner.
type Team []*Process

// NewTeam prepares n workers, worker-1 and so on, whose logs go to the place.
// env is what the one of that name gets beside the environment.
func NewTeam(place *Place, n int, env func(name string) []string) (team Team, err error) {
	for i := range n {
		name := fmt.Sprintf("worker-%d", i+1)
		worker, err := NewProcess(name, place.File(name+".log"))
		if err != nil {
			return nil, errors.Join(err, team.Close())
		}
		worker.Env = env(name)
		team = append(team, worker)
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
func (t Team) Revive(buried func(w *Process)) error {
	for _, w := range t {
		switch {
		case !w.Exited():
			continue
		case !w.killedItself():
			return w.Unexpected()
		}
		buried(w)
		if err := w.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Unexpected is the error of the first worker that ended without being told
// to; nil if none did.
func (t Team) Unexpected() error {
	for _, w := range t {
		if err := w.Unexpected(); err != nil {
			return err
		}
	}
	return nil
}

// Stop stops all at once and waits for them, as Process.Stop does.
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
