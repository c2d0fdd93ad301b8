package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Each script is atomic for all keys of a run, and takes the claim as its first argument. Renewing and finalising act
// only if the claim is still the value of every key. All are safe to repeat, which the client does by itself when a
// connection breaks.
var (
	// claimScript claims the keys if none has a value, and returns the claim. Otherwise it returns the value of one: a
	// marker's, if there is one.
	claimScript = redis.NewScript(`
local other = false
for _, key in ipairs(KEYS) do
	local value = redis.call('GET', key)
	if value and value ~= ARGV[1] then
		if string.sub(value, 1, string.len(ARGV[3])) == ARGV[3] then
			return value
		end
		other = value
	end
end
if other then
	return other
end
for _, key in ipairs(KEYS) do
	redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
end
return ARGV[1]`)

	renewScript = redis.NewScript(`
for _, key in ipairs(KEYS) do
	if redis.call('GET', key) ~= ARGV[1] then
		return 0
	end
end
for _, key in ipairs(KEYS) do
	redis.call('PEXPIRE', key, ARGV[2])
end
return 1`)

	// A repeated finalise finds its own markers.
	finaliseScript = redis.NewScript(`
for _, key in ipairs(KEYS) do
	local value = redis.call('GET', key)
	if value == ARGV[2] then
		return 1
	end
	if value ~= ARGV[1] then
		return 0
	end
end
for _, key in ipairs(KEYS) do
	redis.call('SET', key, ARGV[2], 'PX', ARGV[3])
end
return 1`)

	// releaseScript returns -1 if one of the keys has become another call's.
	releaseScript = redis.NewScript(`
local released = 0
local lost = false
for _, key in ipairs(KEYS) do
	local value = redis.call('GET', key)
	if value == ARGV[1] then
		released = released + redis.call('DEL', key)
	elseif value then
		lost = true
	end
end
if lost then
	return -1
end
return released`)
)

// do runs one command, for at most OperationTimeout.
func do[T any](ctx context.Context, s *Store, command func(ctx context.Context) (T, error)) (value T, err error) {
	bounded, cancel := context.WithTimeout(ctx, s.options.OperationTimeout)
	defer cancel()
	defer s.recoverPanic(&err)
	value, err = command(bounded)
	if _, answered := errors.AsType[redis.Error](err); err == nil || answered || bounded.Err() == nil {
		return value, err
	}
	if ctx.Err() != nil {
		return value, fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return value, fmt.Errorf("no answer within %s: %w: %w", s.options.OperationTimeout, context.DeadlineExceeded, err)
}

// recoverPanic turns a panic of the client, usually of one of its hooks, into the error of its command. Renewals have
// no caller that could recover it. It must be deferred.
func (s *Store) recoverPanic(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the client panicked: %v", p)
		s.log.Error("the Redis client panicked", zap.Any(telemetry.FieldPanic, p), zap.Stack(telemetry.FieldStack))
	}
}

// setIfFree makes the claim, unless one of its keys has a value. It then returns that value, or "" if it is gone by
// then. For several keys only a script is atomic; for one, a command costs less.
func (s *Store) setIfFree(ctx context.Context, c *claim) (made bool, value string, err error) {
	if len(c.keys) > 1 {
		value, err := do(ctx, s, func(ctx context.Context) (string, error) {
			return claimScript.Run(ctx, s.client, c.keys, claimedValue(c.token), milliseconds(s.options.Lease),
				processedPrefix).Text()
		})
		return false, value, err
	}
	if !s.setThenGet.Load() {
		value, err := do(ctx, s, func(ctx context.Context) (string, error) {
			return s.client.SetArgs(ctx, c.keys[0], claimedValue(c.token),
				redis.SetArgs{Mode: "NX", TTL: s.options.Lease, Get: true}).Result()
		})
		if errors.Is(err, redis.Nil) {
			return true, "", nil
		}
		if !redis.HasErrorPrefix(err, "syntax error") {
			return false, value, err
		}
		s.setThenGet.Store(true)
	}
	made, err = do(ctx, s, func(ctx context.Context) (bool, error) {
		return s.client.SetNX(ctx, c.keys[0], claimedValue(c.token), s.options.Lease).Result()
	})
	if made || err != nil {
		return made, "", err
	}
	value, err = s.get(ctx, c.keys[0])
	return false, value, err
}

// get returns the key's value; "" if it has none.
func (s *Store) get(ctx context.Context, key string) (string, error) {
	value, err := do(ctx, s, func(ctx context.Context) (string, error) { return s.client.Get(ctx, key).Result() })
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return value, err
}

// script returns the command that runs a script by its digest, or by its text if the server does not know it.
func (s *Store) script(script *redis.Script, c *claim, arguments ...any) func(ctx context.Context) (int, error) {
	arguments = append([]any{claimedValue(c.token)}, arguments...)
	return func(ctx context.Context) (int, error) {
		return script.Run(ctx, s.client, c.keys, arguments...).Int()
	}
}

// permanentErrors are parts of responses that repeating a command does not change: the key holds no string, the user
// may not run the command, the TTL is invalid. They need not be at the beginning of a response, because Redis 6 adds
// text before the errors of scripts. Transient errors (LOADING, READONLY, OOM, CLUSTERDOWN …) are not listed.
var permanentErrors = []string{"WRONGTYPE", "NOPERM", "invalid expire time"}

// isPermanent reports whether the server has permanently refused a command. After any other error a retry may succeed.
func isPermanent(err error) bool {
	answer, answered := errors.AsType[redis.Error](err)
	return answered &&
		slices.ContainsFunc(permanentErrors, func(part string) bool { return strings.Contains(answer.Error(), part) })
}

// milliseconds rounds up, so that nothing is forgotten early. It does not overflow, even for a retention of
// math.MaxInt64, which stands for "forever".
func milliseconds(d time.Duration) int64 {
	n := d.Milliseconds()
	if d%time.Millisecond > 0 {
		n++
	}
	return n
}

// ErrMayEvict is returned by CheckEviction, and by Run with RequireNoEviction, for a server that may evict markers or
// does not say whether it may.
var ErrMayEvict = errors.New("server may evict markers: its maxmemory-policy must be noeviction")

// CheckEviction asks the server, or each master of a cluster, whether it may evict markers. ErrMayEvict says that it
// may, or that it does not answer the question; any other error says that it could not be asked. Call it at start to
// fail early; with RequireNoEviction Run checks by itself.
func (s *Store) CheckEviction(ctx context.Context) error {
	if err := s.checkEviction(ctx); err != nil {
		return fmt.Errorf("redisstore: %w", err)
	}
	return nil
}

func (s *Store) checkEviction(ctx context.Context) error {
	// Use INFO, not CONFIG GET, which managed servers refuse.
	check := func(ctx context.Context, client redis.Cmdable) error {
		memory, err := client.Info(ctx, "memory").Result()
		_, refused := errors.AsType[redis.Error](err)
		switch policy, limit := evictionIn(memory); {
		case err != nil && !refused:
			return fmt.Errorf("ask for the maxmemory-policy: %w", err)
		case err != nil:
			return fmt.Errorf("%w, and INFO is refused: %w", ErrMayEvict, err)
		case policy == "":
			return fmt.Errorf("%w, and INFO does not tell it", ErrMayEvict)
		case policy != "noeviction" && limit != "0":
			return fmt.Errorf("%w, not %s (maxmemory is %s)", ErrMayEvict, policy, limit)
		}
		return nil
	}
	_, err := do(ctx, s, func(ctx context.Context) (struct{}, error) {
		cluster, ok := s.client.(interface {
			ForEachMaster(ctx context.Context, fn func(ctx context.Context, client *redis.Client) error) error
		})
		if !ok {
			return struct{}{}, check(ctx, s.client)
		}
		return struct{}{}, cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			return check(ctx, master)
		})
	})
	return err
}

// requireNoEviction is checkEviction for Run, at most once per Lease: the server's settings can change, and a replica
// that takes over may have others.
func (s *Store) requireNoEviction(ctx context.Context) error {
	if !s.options.RequireNoEviction {
		return nil
	}
	now := time.Since(s.made)
	if checked := s.evictionChecked.Load(); checked > 0 && now-time.Duration(checked) < s.options.Lease {
		return nil
	}
	if err := s.checkEviction(ctx); err != nil {
		return err
	}
	s.evictionChecked.Store(int64(now))
	return nil
}

// makeReady tries a script on the store's first claim, before its body runs. A user without the right to run scripts
// could not finalise, and every body would run again. It also logs once whether the server may evict markers.
func (s *Store) makeReady(ctx context.Context, c *claim) error {
	if s.ready.Load() {
		return nil
	}
	if !s.options.RequireNoEviction && !s.evictionWarned.Swap(true) {
		s.warnEviction(ctx)
	}
	switch renewed, err := s.renew(ctx, c, c.until); {
	case err != nil:
		s.forget(ctx, c)
		return fmt.Errorf("try a script: %w", err)
	case !renewed:
		return fmt.Errorf("%w: its lease had run out before the body was called", idempotent.ErrLost)
	}
	s.ready.Store(true)
	return nil
}

// warnEviction warns if the server may evict markers before their TTL ends. In a cluster it asks one node.
func (s *Store) warnEviction(ctx context.Context) {
	memory, err := do(ctx, s, func(ctx context.Context) (string, error) { return s.client.Info(ctx, "memory").Result() })
	policy, limit := evictionIn(memory)
	switch {
	case policy == "":
		s.log.Warn("cannot tell whether Redis may evict markers: its maxmemory-policy must be noeviction", zap.Error(err))
	case policy != "noeviction" && limit != "0":
		s.log.Warn("Redis may evict markers, and messages would be handled again: its maxmemory-policy must be noeviction",
			zap.String(telemetry.FieldMaxmemoryPolicy, policy), zap.String(telemetry.FieldMaxmemory, limit))
	}
}

// evictionIn extracts the two settings from the output of INFO memory; "" if they are missing.
func evictionIn(memory string) (policy, limit string) {
	for line := range strings.Lines(memory) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "maxmemory_policy":
			policy = value
		case "maxmemory":
			limit = value
		}
	}
	return policy, limit
}
