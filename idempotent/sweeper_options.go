package idempotent

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// SweepOptions configure a Sweeper. Start from DefaultSweepOptions.
type SweepOptions struct {
	// Interval is the time between sweeps; the first comes one interval after
	// start. Default 1 h.
	Interval time.Duration `yaml:"interval" env:"INTERVAL"`
	// Timeout bounds each call of the store's Cleanup. One that has got on in it
	// is called again at once. Default 1 m.
	Timeout time.Duration `yaml:"timeout" env:"TIMEOUT"`
}

// DefaultSweepOptions returns the defaults.
func DefaultSweepOptions() SweepOptions {
	return SweepOptions{Interval: time.Hour, Timeout: time.Minute}
}

// Validate reports every option that is out of range, joined, each by name with
// its value and what is allowed.
func (o SweepOptions) Validate() error {
	if o == (SweepOptions{}) {
		return errors.New("options are zero: start from idempotent.DefaultSweepOptions()")
	}
	var problems []error
	if o.Interval <= 0 {
		problems = append(problems, fmt.Errorf("option Interval is %s, allowed is more than 0", o.Interval))
	}
	if o.Timeout <= 0 {
		problems = append(problems, fmt.Errorf("option Timeout is %s, allowed is more than 0", o.Timeout))
	}
	return errors.Join(problems...)
}

// SweepOption adjusts a Sweeper. Options are applied in order.
type SweepOption func(*sweepConfig)

type sweepConfig struct {
	SweepOptions
	clock Clock
	log   *zap.Logger
}

// WithSweepOptions replaces all settings by o, for example loaded from a file;
// options after it still apply. Do not pass a struct that did not start from
// DefaultSweepOptions: zero values are values.
func WithSweepOptions(o SweepOptions) SweepOption {
	return func(c *sweepConfig) { c.SweepOptions = o }
}

// SweepInterval is the time between sweeps; the first comes one interval after
// Start. Do not shorten it to forget sooner: Retention does that. Default 1 h.
func SweepInterval(d time.Duration) SweepOption { return func(c *sweepConfig) { c.Interval = d } }

// SweepTimeout bounds each call of the store's Cleanup. Do not set it below what
// one batch of the store's takes: nothing would ever be forgotten. Default 1 m.
func SweepTimeout(d time.Duration) SweepOption { return func(c *sweepConfig) { c.Timeout = d } }

// SweepClock replaces the system clock by which retention is judged, for tests.
// Do not use it to shift time in production. SweepInterval goes by real time.
func SweepClock(clock Clock) SweepOption { return func(c *sweepConfig) { c.clock = clock } }

// SweepLogger sets the zap logger; without it nothing is logged, failures
// included: do not leave it out in production.
func SweepLogger(log *zap.Logger) SweepOption { return func(c *sweepConfig) { c.log = log } }
