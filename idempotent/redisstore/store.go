package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/settings"
	"github.com/gorm-inbox/inbox/internal/telemetry"
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

// resolved returns the defaults as configure changes them, with what follows from other options.
func resolved(configure []func(o *Options)) (Options, error) {
	o := settings.With(DefaultOptions(), configure)
	if err := o.Validate(); err != nil {
		return o, fmt.Errorf("redisstore: %w", err)
	}
	o.Logger = logging.WithoutStacks(o.Logger)
	o.Lease = o.Lease.Truncate(time.Millisecond) // Redis counts these
	o.OperationTimeout = cmp.Or(o.OperationTimeout, min(2*time.Second, o.Lease/3))
	return o, nil
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

// Store is an idempotent.Store in Redis; the package documentation says what it promises. It is safe for concurrent
// use, and any number of stores and processes may share a database.
type Store struct {
	client  redis.UniversalClient
	owned   bool // whether Open made the client
	options Options
	log     *zap.Logger

	made            time.Time
	evictionWarned  atomic.Bool  // whether warnEviction was called
	evictionChecked atomic.Int64 // when, since made, the server was last found not to evict; 0 if never
	ready           atomic.Bool  // whether a script was tried
	setThenGet      atomic.Bool  // whether the server, Redis before 7.0, refuses SET with NX and GET
}

var _ idempotent.Store = (*Store)(nil)

// New returns a store that uses client, in the client's database: a *redis.Client (also with Sentinel), a
// *redis.ClusterClient, or a wrapper of one of them. The client must have ContextTimeoutEnabled, or it would ignore
// OperationTimeout; New checks this unless the client is wrapped. A *redis.Ring is refused. The caller closes the
// client. Each function of configure may change the options, which start as DefaultOptions. Nothing is sent yet. The
// error names an option that is out of range, its value and what is allowed.
func New(client redis.UniversalClient, configure ...func(o *Options)) (*Store, error) {
	if err := checkClient(client); err != nil {
		return nil, err
	}
	o, err := resolved(configure)
	if err != nil {
		return nil, err
	}
	if n := o.Database; n >= 0 {
		return nil, fmt.Errorf("redisstore: option Database is %d, but a client that is given to New has its database: "+
			"set it there, or use Open", n)
	}
	return newStore(client, o), nil
}

// checkClient refuses clients with which keys do not stay on their server, and those that ignore deadlines. If a server
// does not respond, a ring asks another one: claims and markers count as missing, and messages are handled again.
func checkClient(client redis.UniversalClient) error {
	if client == nil {
		return errors.New("redisstore: client is nil")
	}
	if v := reflect.ValueOf(client); v.Kind() == reflect.Pointer && v.IsNil() { // the error of its constructor was ignored
		return fmt.Errorf("redisstore: client is a nil %T", client)
	}
	respects := true
	switch c := client.(type) {
	case *redis.Client:
		respects = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		respects = c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return errors.New("redisstore: client is a *redis.Ring: must be a *redis.Client or a *redis.ClusterClient, because a ring asks another server, which has no markers, when one does not answer")
	}
	if !respects {
		return fmt.Errorf("redisstore: %T ignores deadlines: set ContextTimeoutEnabled in its options", client)
	}
	return nil
}

// Open returns a store with a new client, which Close closes. The address is a URL: redis://user:password@host:6379/0,
// rediss:// for TLS, unix:// for a socket; go-redis' ParseURL documents what else it may contain. For clusters,
// Sentinel or credentials that change, make a client and use New. Nothing is sent yet. No error shows the address,
// because it may contain a password.
func Open(address string, configure ...func(o *Options)) (*Store, error) {
	o, err := resolved(configure)
	if err != nil {
		return nil, err
	}
	found, err := clientOptions(address, o)
	if err != nil {
		return nil, err
	}
	s := newStore(redis.NewClient(found), o)
	s.owned = true
	return s, nil
}

func newStore(client redis.UniversalClient, o Options) *Store {
	return &Store{client: client, options: o, log: o.Logger, made: time.Now()}
}

// Close closes the client if Open made it. Call it after every call has returned. It may be called twice.
func (s *Store) Close() error {
	var err error
	if s.owned {
		err = s.client.Close()
	}
	if err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("redisstore: close: %w", err)
	}
	return nil
}

// Run calls body unless one of the run's keys has been processed, effectively once (contract 8.2). It waits for a live
// claim of another call for up to WaitTimeout, and then returns idempotent.ErrInProgress.
//
// body's context is cancelled, with idempotent.ErrLost as its cause, once the claim is lost or could not be renewed
// until shortly before the end of its lease. Run then returns ErrLost, for any result of body. It also returns ErrLost
// if body succeeded and it is unknown whether that is remembered. A body that succeeds although ctx was cancelled is
// remembered. After a failure the claim is released.
func (s *Store) Run(
	ctx context.Context, run idempotent.Run, body func(ctx context.Context) error,
) (duplicate bool, err error) {
	failed := func(err error) error {
		return fmt.Errorf("redisstore: handler %q, message %q: %w", run.Key.HandlerKey, run.Key.MessageID, err)
	}
	c, duplicate, err := s.begin(ctx, run)
	if err != nil {
		return false, failed(err)
	}
	if duplicate {
		return true, nil
	}
	returned, bodyErr, lost := s.call(ctx, c, body)
	switch {
	case lost != nil && bodyErr != nil:
		return false, failed(fmt.Errorf("%w; the body failed: %w", lost, bodyErr))
	case lost != nil:
		// A body may return nil because its context ended. So nothing is finalised, even if the claim is ours.
		return false, failed(lost)
	case bodyErr != nil:
		if err := s.giveUp(ctx, c); err != nil {
			return false, failed(fmt.Errorf("%w; the body failed: %w", err, bodyErr))
		}
		return false, bodyErr
	}
	if err := s.finalise(ctx, c, processedValue(c.token, returned, run.MessageType), s.retention(run)); err != nil {
		return false, failed(err)
	}
	return false, nil
}

// begin claims the run's keys, unless one has been processed, and makes the store ready for the body.
func (s *Store) begin(ctx context.Context, run idempotent.Run) (c *claim, duplicate bool, err error) {
	if r := s.retention(run); r < time.Millisecond {
		return nil, false, fmt.Errorf("retention is %s: must be 1ms or more, or 0 for the store's", r)
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if err := s.requireNoEviction(ctx); err != nil {
		return nil, false, err
	}
	c, duplicate, err = s.claim(ctx, run)
	if duplicate || err != nil {
		return nil, duplicate, err
	}
	return c, false, s.makeReady(ctx, c)
}

func (s *Store) retention(run idempotent.Run) time.Duration {
	return cmp.Or(run.Retention, s.options.Retention)
}

// call calls body and renews the claim while it runs. It does not recover a panic of body, but releases the claim then,
// and if body ends its goroutine.
func (s *Store) call(
	ctx context.Context, c *claim, body func(ctx context.Context) error,
) (returned time.Time, err, lost error) {
	held, end := s.hold(ctx, c)
	ended := false
	defer func() {
		if ended {
			return
		}
		if end() != nil {
			return // the claim is not ours any more
		}
		if err := s.giveUp(ctx, c); err != nil { // no caller gets this error
			s.log.Warn("claim not released after a panic: the message waits for the lease's end",
				zap.String(telemetry.FieldKey, c.keys[0]), zap.Error(err))
		}
	}()
	err = body(held)
	ended = true
	return time.Now(), err, end()
}

// Processed reports whether the key has been processed. It returns false while the key is being handled.
func (s *Store) Processed(ctx context.Context, key idempotent.Key) (bool, error) {
	value, err := s.get(ctx, s.key(key))
	if err == nil && !known(value) {
		err = errForeignValue
	}
	if err != nil {
		return false, fmt.Errorf("redisstore: handler %q, message %q: %w", key.HandlerKey, key.MessageID, err)
	}
	return strings.HasPrefix(value, processedPrefix), nil
}

// Cleanup does nothing and returns 0: Redis itself deletes markers after their retention.
func (s *Store) Cleanup(context.Context, time.Time) (int64, error) { return 0, nil }
