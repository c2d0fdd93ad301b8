package idempotent

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// SweepOptions configure a Sweeper. Start from DefaultSweepOptions: zero values are values.
type SweepOptions struct {
	// Interval is the time between sweeps; the first comes one interval after Start. Do not shorten it to forget
	// sooner: Retention does that. Default 1 h.
	Interval time.Duration `yaml:"interval" env:"INTERVAL"`
	// Timeout bounds each call of the store's Cleanup; one that has made progress in it is called again at once. Do not
	// set it below the time of one batch of the store: nothing would ever be forgotten. Default 1 m.
	Timeout time.Duration `yaml:"timeout" env:"TIMEOUT"`
	// Clock replaces the system clock by which retention is judged, for tests. Do not use it to shift time in
	// production. Interval goes by real time. Default nil, the system's.
	Clock Clock `yaml:"-" env:"-"`
	// Logger is the zap logger; without it nothing is logged, failures included: do not leave it out in production.
	Logger *zap.Logger `yaml:"-" env:"-"`
}

// DefaultSweepOptions returns the defaults.
func DefaultSweepOptions() SweepOptions {
	return SweepOptions{Interval: time.Hour, Timeout: time.Minute}
}

// Validate reports every option that is out of range, joined, each by name with its value and what is allowed.
func (o SweepOptions) Validate() error {
	if o.Interval == 0 && o.Timeout == 0 {
		return errors.New("options are zero: start from idempotent.DefaultSweepOptions()")
	}
	var problems []error
	if o.Interval <= 0 {
		problems = append(problems, fmt.Errorf("option Interval = %s: must be more than 0", o.Interval))
	}
	if o.Timeout <= 0 {
		problems = append(problems, fmt.Errorf("option Timeout = %s: must be more than 0", o.Timeout))
	}
	return errors.Join(problems...)
}
