package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
)

// Pause stops claiming for a handler key on every worker, within a heartbeat of each. Running
// handlers continue. On an Inline or Direct channel each partition waits at the next message for
// the handler. With a Live it pauses all keys of the handler, so that workers of a program from
// before a rename are paused too; without one it pauses only this key. It returns ErrNotFound
// unless a worker lists the key or statuses are open under it. Pausing a paused handler succeeds
// (contract 5.13).
func (o *Ops) Pause(ctx context.Context, actor Actor, handlerKey string) error {
	return o.setPaused(ctx, actor, ActionPause, handlerKey)
}

// Resume undoes Pause. If the handler is not paused, it returns ErrNotPaused, does nothing and
// leaves no audit row.
func (o *Ops) Resume(ctx context.Context, actor Actor, handlerKey string) error {
	return o.setPaused(ctx, actor, ActionResume, handlerKey)
}

// These use the primary key.
const (
	pause = `
INSERT INTO {handlers} (handler_key, paused, updated_at) VALUES ($1, true, $2)
ON CONFLICT (handler_key) DO UPDATE SET paused = true, updated_at = excluded.updated_at`

	resume = `UPDATE {handlers} SET paused = false, updated_at = $2 WHERE handler_key = $1 AND paused`
)

func (o *Ops) setPaused(ctx context.Context, actor Actor, action Action, handlerKey string) error {
	keys, err := o.keysOf(ctx, handlerKey)
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	// Use all of its keys: a pause of any key pauses the handler, and workers of a program from
	// before a rename know only the legacy keys.
	statement := resume
	if action == ActionPause {
		statement = pause
	}
	err = o.audited(ctx, actor, action, "handler "+keys[0], func(ctx context.Context, tx *gorm.DB) (any, error) {
		var changed int64
		for _, key := range keys {
			rows, err := o.exec(ctx, tx.Statement.ConnPool, statement, key, o.stamp(o.clock.Now()))
			if err != nil {
				return nil, err
			}
			changed += rows
		}
		if changed == 0 {
			return nil, ErrNotPaused
		}
		return map[string]any{"keys": keys}, nil
	})
	if err == nil && o.live != nil {
		// This only saves time: the next heartbeat applies it, too.
		_ = o.live.TakePaused(context.WithoutCancel(ctx))
	}
	return err
}

// keysOf returns the keys of a handler that is known in some way.
func (o *Ops) keysOf(ctx context.Context, key string) ([]string, error) {
	if err := checkText("handler key", key, 1, columns.MaxHandlerKey); err != nil {
		return nil, err
	}
	if o.live != nil {
		if keys, err := o.live.HandlerKeys(key); !errors.Is(err, ErrNotFound) {
			return keys, err
		}
	}
	handlers, err := o.Handlers(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(handlers, func(h Handler) bool { return h.HandlerKey == key }) {
		return nil, fmt.Errorf("handler key %q: %w: no worker lists it and nothing is open under it", key, ErrNotFound)
	}
	return []string{key}, nil
}
