package inbox

import (
	"fmt"
	"time"
)

// HealthOptions say when an inbox is not healthy (contract 11.5).
type HealthOptions struct {
	// SampleInterval is the time between looks at the backlog, of health and of
	// the gauges. Default 15 s.
	SampleInterval time.Duration `yaml:"sample_interval" env:"SAMPLE_INTERVAL"`
	// HealthDegradedAfter and HealthUnhealthyAfter are how long no attempt may
	// end while work is due. Default 2 m and 5 m.
	HealthDegradedAfter  time.Duration `yaml:"health_degraded_after" env:"HEALTH_DEGRADED_AFTER"`
	HealthUnhealthyAfter time.Duration `yaml:"health_unhealthy_after" env:"HEALTH_UNHEALTHY_AFTER"`
	// HealthMaxDueAge is how long a status may be due before health degrades; 0
	// is without end. Default 15 m.
	HealthMaxDueAge time.Duration `yaml:"health_max_due_age" env:"HEALTH_MAX_DUE_AGE"`
	// HealthMaxPoisonRate is which share of the statuses that ended within
	// HealthPoisonWindow may be poisoned; 1 is all. Default 0.1 and 5 m.
	HealthMaxPoisonRate float64       `yaml:"health_max_poison_rate" env:"HEALTH_MAX_POISON_RATE"`
	HealthPoisonWindow  time.Duration `yaml:"health_poison_window" env:"HEALTH_POISON_WINDOW"`
	// LongRunning is how long a call of a handler may run before health and log
	// say so; 0 is without end. Default 5 m.
	LongRunning time.Duration `yaml:"long_running" env:"LONG_RUNNING"`
}

func defaultHealthOptions() HealthOptions {
	return HealthOptions{
		SampleInterval: 15 * time.Second, HealthDegradedAfter: 2 * time.Minute, HealthUnhealthyAfter: 5 * time.Minute,
		HealthMaxDueAge: 15 * time.Minute, HealthMaxPoisonRate: 0.1, HealthPoisonWindow: 5 * time.Minute,
		LongRunning: 5 * time.Minute,
	}
}

func (o HealthOptions) problems() []error {
	var problems []error
	refuse := func(name string, value any, allowed string) {
		problems = append(problems, fmt.Errorf("option %s is %v, allowed is %s", name, value, allowed))
	}
	if o.SampleInterval <= 0 {
		refuse("SampleInterval", o.SampleInterval, "more than 0")
	}
	if o.HealthDegradedAfter <= o.SampleInterval {
		refuse("HealthDegradedAfter", o.HealthDegradedAfter, fmt.Sprintf("more than SampleInterval (%s)", o.SampleInterval))
	}
	if o.HealthUnhealthyAfter < o.HealthDegradedAfter {
		refuse("HealthUnhealthyAfter", o.HealthUnhealthyAfter,
			fmt.Sprintf("HealthDegradedAfter (%s) or more", o.HealthDegradedAfter))
	}
	if o.HealthMaxDueAge < 0 {
		refuse("HealthMaxDueAge", o.HealthMaxDueAge, "0 (without end) or more")
	}
	if !(o.HealthMaxPoisonRate > 0 && o.HealthMaxPoisonRate <= 1) { // not a number is neither
		refuse("HealthMaxPoisonRate", o.HealthMaxPoisonRate, "more than 0 and at most 1")
	}
	if o.HealthPoisonWindow < o.SampleInterval || o.HealthPoisonWindow > longestPoisonWindow {
		refuse("HealthPoisonWindow", o.HealthPoisonWindow,
			fmt.Sprintf("SampleInterval (%s) to %s", o.SampleInterval, longestPoisonWindow))
	}
	if o.LongRunning < 0 {
		refuse("LongRunning", o.LongRunning, "0 (without end) or more")
	}
	return problems
}

// longestPoisonWindow bounds what a sampler keeps.
const longestPoisonWindow = 24 * time.Hour

// SampleInterval is the time between looks at the database for what is due,
// processing and poisoned: for Health, and for the gauges. Each process looks,
// and counts at most ten thousand rows per handler. Do not shorten it to see more: lengthen it
// where hundreds of processes share an inbox. Default 15 s (contract 11.5, 12).
func SampleInterval(d time.Duration) Option {
	return func(c *config) { c.options.Health.SampleInterval = d }
}

// HealthAfter is how long no attempt may end in this process while work is due
// before it is degraded, and unhealthy. Do not set it below what the slowest
// handlers take: where all slots run such, nothing ends for as long. A process
// that is unhealthy for it is not ready, and not live either if it runs nothing
// at all. Default 2 m and 5 m (contract 11.5).
func HealthAfter(degraded, unhealthy time.Duration) Option {
	return func(c *config) {
		c.options.Health.HealthDegradedAfter, c.options.Health.HealthUnhealthyAfter = degraded, unhealthy
	}
}

// HealthMaxDueAge is how long a status may be due, and this process be started,
// before health degrades; 0 is without end. It never makes a process unready:
// others would get its share. Do not set it for inboxes that are filled in bulk
// and worked off over hours. Default 15 m (contract 11.5).
func HealthMaxDueAge(d time.Duration) Option {
	return func(c *config) { c.options.Health.HealthMaxDueAge = d }
}

// LongRunning is how long a call of a handler may run, in any delivery mode,
// before health degrades and the log names it; 0 is without end. A handler whose
// timeout is longer has that time. The call itself is left alone: HandlerTimeout
// ends it. Do not raise it for a handler that is slow by nature: give that one a
// Timeout. Default 5 m (contract 5.4, 11.5).
func LongRunning(d time.Duration) Option {
	return func(c *config) { c.options.Health.LongRunning = d }
}

// HealthMaxPoisonRate is which share of what ended in this process within the
// window may be poisoned before health degrades; ten must be, for single bad
// messages are what poisoning is for. 1 is never. Do not lower it to learn of
// each: alert on inbox.backlog.poisoned. Default 0.1 within 5 m (contract 11.5).
func HealthMaxPoisonRate(share float64, within time.Duration) Option {
	return func(c *config) {
		c.options.Health.HealthMaxPoisonRate, c.options.Health.HealthPoisonWindow = share, within
	}
}
