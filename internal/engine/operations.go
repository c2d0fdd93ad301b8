package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// NewOps makes an API to inspect and operate this inbox. It has the inbox's tables, clock, StatementTimeout and
// redaction hook, and the actions that only this process can do; the option Ops, and then configure, may change the
// options.
func (e *Engine) NewOps(configure ...func(o *ops.Options)) (*ops.Ops, error) {
	first := func(o *ops.Options) {
		o.Naming, o.Clock, o.Live = e.cfg.Naming, e.cfg.Clock, live{e}
		o.StatementTimeout = e.cfg.Processor.StatementTimeout
	}
	// The inbox's hook is last set but first to run, so that no option removes it.
	last := func(o *ops.Options) { o.Redact = e.cfg.Redactor.Then(o.Redact).Hook() }
	return ops.New(e.cfg.DB, slices.Concat([]func(*ops.Options){first, e.cfg.Ops}, configure,
		[]func(*ops.Options){last})...)
}

// live gives operators the actions that only the running application can do.
type live struct{ e *Engine }

func (l live) AcceptTx(ctx context.Context, tx *gorm.DB, m handler.RawMessage) (ops.Accepted, func(), error) {
	if err := l.e.tables.checkTx(ctx, tx); err != nil {
		return ops.Accepted{}, nil, err
	}
	receipt, err := l.e.acceptor.AcceptTx(ctx, tx, m)
	if err != nil {
		return ops.Accepted{}, nil, badInput(err)
	}
	return acceptedOf(receipt.Results)[0], receipt.Wake, nil
}

func (l live) AcceptRejected(
	ctx context.Context, id string, begun func(context.Context) error, audit models.Audit,
) ([]ops.Accepted, error) {
	if err := l.e.tables.ready(ctx); err != nil {
		return nil, err
	}
	results, err := l.e.acceptor.AcceptRejectedBy(ctx, id, begun, &audit)
	switch {
	case errors.Is(err, acceptor.ErrRejectedNotFound):
		return nil, fmt.Errorf("%w: %w", ops.ErrNotFound, err)
	case errors.Is(err, acceptor.ErrRunning), errors.Is(err, idempotent.ErrInProgress):
		return nil, fmt.Errorf("%w: %w", ops.ErrProcessing, err)
	case errors.As(err, new(*synchronous.PausedError)):
		return nil, fmt.Errorf("%w: %w", ops.ErrPaused, err)
	}
	var stillBad *handler.StillBadError
	if err != nil && !errors.As(err, &stillBad) {
		err = badInput(err)
	}
	return acceptedOf(results), err
}

// badInput marks an error in the message as the operator's, to distinguish it from the database's errors.
func badInput(err error) error {
	var invalid *acceptor.InvalidError
	if errors.As(err, &invalid) {
		return fmt.Errorf("%w: %w", ops.ErrBadInput, err)
	}
	return err
}

func acceptedOf(results []acceptor.Result) []ops.Accepted {
	accepted := make([]ops.Accepted, len(results))
	for i, r := range results {
		accepted[i] = ops.Accepted{MessageID: r.MessageID, Outcome: r.Outcome, Handlers: r.Handlers}
	}
	return accepted
}

func (l live) Cleanup(ctx context.Context) (handler.Deleted, error) {
	if err := l.e.tables.ready(ctx); err != nil {
		return handler.Deleted{}, err
	}
	return l.e.cleaner.Clean(ctx)
}

func (l live) Subscription(key string) (ops.Subscription, error) {
	s, known := l.e.cfg.Registry.Subscription(key)
	if !known {
		return ops.Subscription{}, fmt.Errorf("handler key %q: %w", key, ops.ErrNotFound)
	}
	namespaces := l.e.cfg.sharedNamespaces()
	of := func(channel string) string { return cmp.Or(namespaces[channel], channel) }
	return ops.Subscription{Handler: s.Handler, Channel: s.Channel, Type: s.Type, Namespace: of(s.Channel),
		Shared: slices.ContainsFunc(l.e.cfg.channelNames(), func(name string) bool {
			return name != s.Channel && of(name) == of(s.Channel)
		}),
		Retention: cmp.Or(s.Handler.Retention(), l.e.cfg.Cleanup.Retention),
		Stored:    !s.Synchronous}, nil
}

func (l live) Wake(handlerKeys ...string) {
	var primary []string
	for _, key := range handlerKeys {
		if h, known := l.e.cfg.Registry.Lookup(key); known {
			primary = append(primary, h.Key())
		}
	}
	if len(primary) > 0 { // without keys Wake would wake all
		slices.Sort(primary)
		l.e.processor.Wake(slices.Compact(primary)...)
	}
}

func (l live) Ended() (time.Time, map[string]ops.Ended) { return l.e.sampler.endedByHandler() }

func (l live) TakePaused(ctx context.Context) error { return l.e.processor.TakePaused(ctx) }
