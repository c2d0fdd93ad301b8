package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

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
