package ops

import (
	"context"
	"errors"
)

// Pause stops claiming for a handler key on every worker, within a heartbeat of
// each; what runs goes on. ErrNotFound unless a worker lists the key or
// statuses are open under it. Pausing what is paused is fine (contract 5.13).
func (o *Ops) Pause(ctx context.Context, actor Actor, handlerKey string) error {
	return errors.ErrUnsupported
}

// Resume undoes Pause.
func (o *Ops) Resume(ctx context.Context, actor Actor, handlerKey string) error {
	return errors.ErrUnsupported
}
