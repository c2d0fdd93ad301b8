package redisstore

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/logging"
)

// Options configure a Store. Start from DefaultOptions: zero values are values.
type Options struct {
	// KeyPrefix is what the store's keys begin with: 1 to 200 characters. Stores with the same prefix in one database
	// share their markers: give each application that shares a database its own prefix. Do not change it while messages
	// may come again: under another prefix they are not known. A prefix with a hash tag ("{orders}") puts all markers
	// into one slot of a cluster: do not, unless that is what you want. It must not contain "{}", with which a cluster
	// would not keep a message's keys in one slot. Default "inbox".
	KeyPrefix string `yaml:"key_prefix" env:"KEY_PREFIX"`
	// Lease is how long a claim lives without being renewed: how soon after a crash another call may handle the
	// message. It is renewed every third of it, so it need not be as long as a body runs. Do not set it near the length
	// of pauses that the process or the network really has (garbage collection, failover): each that outlasts it may
	// make a body run twice. At least 100 ms; default 30 s.
	Lease time.Duration `yaml:"lease" env:"LEASE"`
	// WaitTimeout is how long a call waits for another call of the same key. It polls at growing, random intervals of
	// up to three quarters of a second. The end of the caller's context ends the wait. A claim that a command may have
	// made by then is released first, within OperationTimeout. 0 returns idempotent.ErrInProgress at once: right where
	// the transport waits before it redelivers, wrong where that would be a busy loop. Default 10 s.
	WaitTimeout time.Duration `yaml:"wait_timeout" env:"WAIT_TIMEOUT"`
	// OperationTimeout bounds each command, under any timeouts of the client. At most a third of Lease, so that a claim
	// survives a command that hangs. Do not raise it to survive outages: bodies would lose their leases during them.
	// Default 0, which is 2 s, or a third of Lease where that is less.
	OperationTimeout time.Duration `yaml:"operation_timeout" env:"OPERATION_TIMEOUT"`
	// Retention is how long it is remembered that a key was processed where neither the handler's Retention nor
	// idempotent.Run says; Redis forgets it then by itself. It must be longer than any redelivery may be late. Do not
	// use it to set one handler's retention: that is the wrapper's option. At least 1 ms; default 7 days.
	Retention time.Duration `yaml:"retention" env:"RETENTION"`
	// Database is the number of the Redis database, instead of the URL's: 0 or more. Only for Open: a client that is
	// given to New has its database. Do not use it with a cluster, which has database 0 alone. Default -1, the one that
	// the URL names.
	Database int `yaml:"database" env:"DATABASE"`
	// RequireNoEviction has the store run no body on a server that may evict markers: its maxmemory-policy is not
	// noeviction while maxmemory has a limit, or it does not say (INFO is refused). Run returns ErrMayEvict then,
	// before anything is claimed. The server is asked before the first body and again once per Lease, a cluster's
	// masters each; CheckEviction asks it at start. Set it where handling a message twice is worse than not handling it
	// until the server is configured. Do not set it on managed servers that refuse INFO: nothing would run. Default
	// false: the log warns once and messages run.
	RequireNoEviction bool `yaml:"require_no_eviction" env:"REQUIRE_NO_EVICTION"`
	// Logger is where the store logs conditions that no caller gets as an error: that the server may evict markers,
	// that a claim could not be released after a panic, and the stack of a panic of the client, which is its command's
	// error otherwise. Do not leave it out in production. Default nil, which logs nothing.
	Logger *zap.Logger `yaml:"-" env:"-"`
}

// DefaultOptions returns the defaults (contract 8.2).
func DefaultOptions() Options {
	return Options{KeyPrefix: "inbox", Lease: 30 * time.Second, WaitTimeout: 10 * time.Second,
		Retention: 7 * 24 * time.Hour, Database: -1}
}

const (
	maxKeyPrefix = 200
	minLease     = 100 * time.Millisecond
)

// Validate reports every option that is out of range, by name, with its value and what is allowed.
func (o Options) Validate() error {
	var problems []error
	refuse := func(name string, value any, allowed string) {
		problems = append(problems, fmt.Errorf("option %s = %v: must be %s", name, value, allowed))
	}
	if n := len([]rune(o.KeyPrefix)); n < 1 || n > maxKeyPrefix || strings.Contains(o.KeyPrefix, "{}") {
		refuse("KeyPrefix", fmt.Sprintf("%q", o.KeyPrefix), `1 to 200 characters without "{}"`)
	}
	if o.Lease < minLease {
		refuse("Lease", o.Lease, "100ms or more")
	}
	if o.WaitTimeout < 0 {
		refuse("WaitTimeout", o.WaitTimeout, "0 (does not wait) or more")
	}
	if o.OperationTimeout < 0 || o.OperationTimeout > o.Lease/3 {
		refuse("OperationTimeout", o.OperationTimeout,
			fmt.Sprintf("0 (chosen by the store) to a third of Lease, %s", o.Lease/3))
	}
	if o.Retention < time.Millisecond {
		refuse("Retention", o.Retention, "1ms or more")
	}
	if o.Database < -1 || o.Database > math.MaxInt32 {
		refuse("Database", o.Database, "-1 (the URL's) or more")
	}
	return errors.Join(problems...)
}

// resolve fills in what follows from other options.
func (o Options) resolve() Options {
	o.Lease = o.Lease.Truncate(time.Millisecond) // Redis counts these
	if o.OperationTimeout == 0 {
		o.OperationTimeout = min(2*time.Second, o.Lease/3)
	}
	return o
}

// resolved returns the defaults as configure changes them.
func resolved(configure []func(o *Options)) (Options, error) {
	o := DefaultOptions()
	for _, set := range configure {
		if set != nil {
			set(&o)
		}
	}
	if err := o.Validate(); err != nil {
		return o, fmt.Errorf("redisstore: %w", err)
	}
	o.Logger = logging.WithoutStacks(o.Logger)
	return o.resolve(), nil
}

// clientOptions returns the options of a URL such as redis://user:password@host:6379/0, with the settings that the
// store needs. Its errors never contain the parser's errors, because these quote a part of the URL: if a password's
// "/", "?" or "#" is not encoded, any part may belong to the password. With a "#" it would even be taken for a host and
// a port, which dial errors name.
func clientOptions(address string, o Options) (*redis.Options, error) {
	found, err := redis.ParseURL(address)
	if err != nil || strings.Contains(address, "#") {
		return nil, errors.New("redisstore: URL: it cannot be read, and is not shown as it may hold a password: " +
			"it must be redis://user:password@host:port/database, rediss:// or unix:// too, with user and password percent-encoded " +
			"(%2F for a slash, %23 for a number sign, %3F for a question mark) and the parameters of go-redis' ParseURL")
	}
	if o.Database >= 0 {
		found.DB = o.Database
	}
	found.ContextTimeoutEnabled = true
	return found, nil
}
