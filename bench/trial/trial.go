// Package trial compares ways of doing the same work, in one run on one server. It runs round after
// round, with each variant once in every round, so that what slows the machine slows all variants.
// Additional rounds have only the variants that a line compares. The results are medians, and for a
// ratio the median of the rounds' ratios.
package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/gorm-inbox/inbox/bench/server"
)

// ErrLeftOut means that a group cannot be measured here because something that it needs is not
// installed.
var ErrLeftOut = errors.New("left out")

// errTooSlow is the cause when a trial exceeds its deadline.
var errTooSlow = errors.New("a trial may not run that long")

// Group is one question and the variants that answer it.
type Group struct {
	Name     string
	About    string // one sentence for the reader of the table
	Unit     string // what is counted: message, status, job
	Variants []Variant
	Lines    []Line
	// NoDatabase is for trials that do not need a database of their own. Env.DSN is then empty.
	NoDatabase bool
	// NoPostgres is NoDatabase for trials that do not use PostgreSQL at all. Its CPU and WAL are not measured.
	NoPostgres bool
	// Shared creates, before the first round, what takes too long to create for each trial, such as
	// a table of millions of rows. Each trial gets it as Env.Shared. It is closed after the last
	// round. If Shared returns ErrLeftOut, the group is left out. It may be nil.
	Shared func(ctx context.Context, lab *Lab) (io.Closer, error)
}

// Variant is one way of doing the group's work.
type Variant struct {
	Name string
	// New prepares one trial, untimed. The trial has an empty database of its own, unless the group
	// has NoDatabase.
	New func(ctx context.Context, env *Env) (*Trial, error)
}

// Trial is one run of one variant.
type Trial struct {
	// Count is how many units Run handles.
	Count int
	// Run is the timed part.
	Run func(ctx context.Context) error
	// Check returns an error unless the database holds what Run must have left, so that a variant
	// that does less work cannot win. It is required.
	Check func(ctx context.Context) error
	// Close ends what New started. It may be nil.
	Close func()
	// Values are further figures, such as "p99_ms". Run or Check sets them.
	Values map[string]float64
}

// Lab is the environment of all trials.
type Lab struct {
	Server *server.Server
	Rounds int
	Quick  bool
	Tiny   bool   // for tests of the benchmarks: figures mean nothing
	Kafka  string // the address of an external broker, for such tests
	Redis  string // the URL of an external Redis, for such tests
	Log    io.Writer
	// Profiles is the directory for CPU profiles of each variant's last trial. If it is empty,
	// there are none.
	Profiles string
	// Deadline is how long each trial may run. 0 means three minutes.
	Deadline time.Duration
}

// tiny is the largest number of units in a tiny trial.
const tiny = 300

// Scale returns full, quick in a quick run, or a few hundred in a test.
func (l *Lab) Scale(full, quick int) int {
	if l.Tiny {
		return min(quick, tiny)
	}
	if l.Quick {
		return quick
	}
	return full
}

// Env is what one trial may use.
type Env struct {
	*Lab
	// DSN is that of an empty database, which is dropped after the trial. See NoDatabase.
	DSN    string
	Shared io.Closer

	group Group
}

// Measure has the measurements of one trial.
type Measure struct {
	Rate     float64 // units a second
	ClientUs float64 // CPU of this process per unit, in microseconds
	ServerUs float64 // CPU of PostgreSQL per unit
	WAL      float64 // bytes per unit
	Values   map[string]float64
}

// Result has a group's measurements by variant, in the order of the rounds.
type Result struct {
	Group    Group
	Measures map[string][]Measure
}

// Run measures a group.
func (l *Lab) Run(ctx context.Context, g Group) (_ *Result, err error) {
	env := Env{Lab: l, group: g}
	rounds := l.rounds(g)
	if g.Shared != nil {
		if env.Shared, err = g.Shared(ctx, l); err != nil {
			return nil, fmt.Errorf("%s: prepare: %w", g.Name, err)
		}
		defer func() { err = errors.Join(err, env.Shared.Close()) }()
	}
	g.About += l.more(g, rounds)
	g.Lines = l.limited(g.Lines)
	result := &Result{Group: g, Measures: map[string][]Measure{}}
	for round, chosen := range rounds {
		for i := range chosen {
			v := chosen[turn(round, i, len(chosen))]
			m, err := l.measure(ctx, v, env)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", g.Name, v.Name, err)
			}
			result.Measures[v.Name] = append(result.Measures[v.Name], m)
			fmt.Fprintf(l.Log, "%s  %d/%d  %-16s %-48s %9.0f /s\n", time.Now().Format("15:04:05"), round+1, len(rounds), g.Name,
				v.Name, m.Rate)
		}
	}
	return result, nil
}

// deadline is how long a trial may run, far longer than any takes. A trial that waits for a
// completion that never comes ends with an error that says how far it was.
const deadline = 3 * time.Minute

func (l *Lab) measure(ctx context.Context, v Variant, env Env) (_ Measure, failed error) {
	if !env.group.NoDatabase && !env.group.NoPostgres {
		database, err := l.Server.NewDatabase(ctx)
		if err != nil {
			return Measure{}, err
		}
		defer func() { failed = errors.Join(failed, database.Drop()) }()
		env.DSN = database.DSN
	}
	t, err := v.New(ctx, &env)
	if err != nil {
		return Measure{}, fmt.Errorf("prepare: %w", err)
	}
	if t.Close != nil {
		defer t.Close()
	}
	// Each trial starts with clean buffers right after a checkpoint.
	if err := l.Server.Settle(ctx); err != nil {
		return Measure{}, err
	}
	// Collect garbage of the preparation and the previous trial before the timing starts.
	runtime.GC()
	before, err := l.Server.Usage(ctx)
	if err != nil {
		return Measure{}, err
	}
	stop, err := l.profile(env.group.Name, v.Name)
	if err != nil {
		return Measure{}, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, cmp.Or(l.Deadline, deadline), errTooSlow)
	began := time.Now()
	err = t.Run(limited)
	took := time.Since(began)
	if err != nil && errors.Is(context.Cause(limited), errTooSlow) {
		err = fmt.Errorf("not done after %s: %w", took.Round(time.Millisecond), err)
	}
	cancel()
	if err = errors.Join(err, stop()); err != nil {
		return Measure{}, err
	}
	after, err := l.Server.Usage(ctx)
	if err != nil {
		return Measure{}, err
	}
	if err := t.Check(ctx); err != nil {
		return Measure{}, fmt.Errorf("check: %w", err)
	}
	if err := l.Server.CheckDurable(ctx); err != nil {
		return Measure{}, err
	}
	n := float64(t.Count)
	m := Measure{Rate: n / took.Seconds(), Values: t.Values}
	m.ClientUs = (after.Client - before.Client).Seconds() * 1e6 / n
	if !env.group.NoPostgres {
		m.ServerUs = (after.Server - before.Server).Seconds() * 1e6 / n
		m.WAL = float64(after.WAL-before.WAL) / n
	}
	return m, nil
}
