package redisstore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

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
		return nil,
			fmt.Errorf("redisstore: option Database is %d, but a client that is given to New has its database: set it there, or use Open", n)
	}
	return newStore(client, o), nil
}

// checkClient refuses clients with which keys do not stay on their server, and those that ignore deadlines. If a server
// does not respond, a ring asks another one for its keys: the claims and markers there count as missing, and messages
// are handled again.
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
		// A body may return nil because its context ended. So nothing is finalised, even if the claim should still be
		// ours.
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
	if run.Retention == 0 {
		return s.options.Retention
	}
	return run.Retention
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
