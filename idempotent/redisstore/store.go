package redisstore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Store is an idempotent.Store in Redis: see the package on what it promises. It
// is safe for concurrent use, and any number of stores and processes may share a
// database.
type Store struct {
	client  redis.UniversalClient
	owned   bool // made by Open
	options Options
	log     *zap.Logger

	made            time.Time
	looked          atomic.Bool  // at whether the server may evict markers
	evictionChecked atomic.Int64 // when, since made, the server was last found not to evict; 0 if never
	ready           atomic.Bool  // a script has been tried
	commands        sync.WaitGroup
}

var _ idempotent.Store = (*Store)(nil)

// New returns a store that uses client, in the client's database: a
// *redis.Client (with Sentinel too), a *redis.ClusterClient, or what wraps one
// of them. A *redis.Ring is refused. The client stays the caller's to close.
// Nothing is sent yet. The error names the option that is out of range, its
// value and what is allowed.
func New(client redis.UniversalClient, opts ...Option) (*Store, error) {
	if err := checkClient(client); err != nil {
		return nil, err
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if n := c.options.Database; n >= 0 {
		return nil,
			fmt.Errorf("redisstore: option Database is %d, but a client that is given to New has its database: set it there, or use Open", n)
	}
	return &Store{client: client, options: c.options, log: c.log, made: time.Now()}, nil
}

// checkClient refuses clients with which keys would not stay where they are. A
// ring asks another server for the keys of one that does not answer: the claims
// and markers there count as missing, and messages are handled again.
func checkClient(client redis.UniversalClient) error {
	if client == nil {
		return errors.New("redisstore: client is nil")
	}
	if v := reflect.ValueOf(client); v.Kind() == reflect.Pointer && v.IsNil() { // a constructor's error overlooked
		return fmt.Errorf("redisstore: client is a nil %T", client)
	}
	if _, ring := client.(*redis.Ring); ring {
		return errors.New("redisstore: client is a *redis.Ring, which asks another server when one does not answer, where no marker is: allowed is a *redis.Client or a *redis.ClusterClient")
	}
	return nil
}

// Open returns a store with a client of its own, which Close closes. The address
// is a URL: redis://user:password@host:6379/0, rediss:// for TLS, unix:// for a
// socket; go-redis' ParseURL says what else it may hold. For clusters, Sentinel
// or credentials that change make a client and use New. Nothing is sent yet. No
// error shows the address: it may hold a password.
func Open(address string, opts ...Option) (*Store, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	found, err := clientOptions(address, c.options)
	if err != nil {
		return nil, err
	}
	return &Store{client: redis.NewClient(found), owned: true, options: c.options, log: c.log, made: time.Now()}, nil
}

// Close waits for commands that timed out and are still under way, which the
// client's own timeouts bound, and closes the client if Open made it. Call it
// when every call has returned. It is safe to call twice.
func (s *Store) Close() error {
	var err error
	if s.owned {
		err = s.client.Close() // ends those commands
	}
	s.commands.Wait()
	if err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("redisstore: close: %w", err)
	}
	return nil
}

// Run calls body unless the key has been processed, effectively once (contract
// 8.2). A live claim of another call is waited for, up to WaitTimeout, and then
// idempotent.ErrInProgress is returned. Body's context is cancelled, with
// idempotent.ErrLost as its cause, once the claim is lost or could not be
// renewed until shortly before the end of its lease; the error is ErrLost then,
// whatever body returned. It is ErrLost, too, if body succeeded and it cannot be
// said that this is remembered. A body that succeeds though ctx has been
// cancelled is remembered. After a failure the claim is released.
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
		// A body may return nil because its context ended. Nothing is
		// finalised, even if the claim should still be ours.
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

// begin claims the key, unless it has been processed, so that the body may run.
func (s *Store) begin(ctx context.Context, run idempotent.Run) (c *claim, duplicate bool, err error) {
	if r := s.retention(run); r < time.Millisecond {
		return nil, false, fmt.Errorf("retention is %s, allowed is 1ms or more, or 0 for the store's", r)
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if err := s.requireNoEviction(ctx); err != nil {
		return nil, false, err
	}
	c, duplicate, err = s.claim(ctx, run.Key)
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

// call calls body while it renews the claim. A panic, or the end of the
// goroutine, goes on to the caller, the claim being released.
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
			return // not ours any more
		}
		if err := s.giveUp(ctx, c); err != nil { // nobody else gets to hear of it
			s.log.Warn("claim not released after a panic: the message waits for the lease's end",
				zap.String(telemetry.FieldKey, c.key), zap.Error(err))
		}
	}()
	err = body(held)
	ended = true
	return time.Now(), err, end()
}

// Processed reports whether the key has been processed; while it is being
// handled it has not.
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

// Cleanup does nothing and returns 0: Redis forgets by itself what is past its
// retention.
func (s *Store) Cleanup(context.Context, time.Time) (int64, error) { return 0, nil }
