package memstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
)

// Options configure a Store. Start from DefaultOptions: zero values are values.
type Options struct {
	// MaxKeys bounds the keys that are remembered or being handled; see Store for what happens at the bound. Do not set
	// it below the number of messages within the longest retention: messages would be refused until the first have
	// expired. Default 100,000, which takes 18.5 MB when full of UUIDs of one handler (heap in use after a collection,
	// Go 1.26 on amd64: go test -run '^$' -bench FullStore -benchtime 1x ./idempotent/memstore).
	MaxKeys int `yaml:"max_keys" env:"MAX_KEYS"`
	// WaitTimeout is how long a call waits for another one of its key before it returns idempotent.ErrInProgress; 0
	// does not wait. Do not set it above the time the transport gives a message, nor to 0 where it redelivers at once.
	// Default 10 s.
	WaitTimeout time.Duration `yaml:"wait_timeout" env:"WAIT_TIMEOUT"`
	// Clock replaces the system clock by which retention is judged, for tests. Do not use it to shift time in
	// production. WaitTimeout goes by real time. Default nil, the system's.
	Clock idempotent.Clock `yaml:"-" env:"-"`
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options { return Options{MaxKeys: 100_000, WaitTimeout: 10 * time.Second} }

// Validate reports every option that is out of range, joined, each by name with its value and what is allowed.
func (o Options) Validate() error {
	if o.MaxKeys == 0 && o.WaitTimeout == 0 {
		return errors.New("options are zero: start from memstore.DefaultOptions()")
	}
	var problems []error
	if o.MaxKeys < 1 {
		problems = append(problems, fmt.Errorf("option MaxKeys = %d: must be 1 or more", o.MaxKeys))
	}
	if o.WaitTimeout < 0 {
		problems = append(problems, fmt.Errorf("option WaitTimeout = %s: must be 0 (do not wait) or more", o.WaitTimeout))
	}
	return errors.Join(problems...)
}
