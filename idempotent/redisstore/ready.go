package redisstore

import (
	"context"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/telemetry"
)

// makeReady tries a script on the store's first claim, before its body: a user
// without the right to run scripts could not finalise, and every body would run
// again. And it says once what the server may do to the markers.
func (s *Store) makeReady(ctx context.Context, c *claim) error {
	if s.ready.Load() {
		return nil
	}
	if !s.looked.Swap(true) {
		s.lookAtEviction(ctx)
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

// lookAtEviction warns if the server may evict markers before their TTL. In a
// cluster it asks one node. INFO is asked, not CONFIG GET, which managed servers
// refuse.
func (s *Store) lookAtEviction(ctx context.Context) {
	memory, err := do(ctx, s, func(ctx context.Context) (string, error) { return s.client.Info(ctx, "memory").Result() })
	info := map[string]string{}
	for line := range strings.Lines(memory) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	policy, limit := info["maxmemory_policy"], info["maxmemory"]
	switch {
	case policy == "":
		s.log.Warn("cannot tell whether Redis may evict markers: its maxmemory-policy must be noeviction", zap.Error(err))
	case policy != "noeviction" && limit != "0":
		s.log.Warn("Redis may evict markers, and messages would be handled again: its maxmemory-policy must be noeviction",
			zap.String(telemetry.FieldMaxmemoryPolicy, policy), zap.String(telemetry.FieldMaxmemory, limit))
	}
}
