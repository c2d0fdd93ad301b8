package workload

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
)

// The steps that rows of runs have. Each run begins, and ends in one of three ways unless it was
// interrupted.
const (
	stepBegan    = "began"
	stepDone     = "done"
	stepFailed   = "failed"
	stepPoisoned = "poisoned"
)

// Handlers are the two handlers of every message.
type Handlers struct {
	effects *sql.DB
	inbox   func() *inbox.Inbox // nil if nothing is published
}

// NewHandlers returns handlers of which the plain one writes to effects.
func NewHandlers(effects *sql.DB) *Handlers { return &Handlers{effects: effects} }

var errAsked = errors.New("the job asks for a failure")

// RecordEffect is transactional: its row and the completion are committed together.
func (h *Handlers) RecordEffect(ctx context.Context, tx *gorm.DB, m handler.Message[Job]) error {
	if m.Payload.Stubborn {
		ctx = context.WithoutCancel(ctx)
		tx = tx.WithContext(ctx)
	}
	err := tx.Exec("INSERT INTO effects (message_id, attempt, pid) VALUES (?, ?, ?)", m.ID, m.Attempt, os.Getpid()).Error
	if err != nil {
		return fmt.Errorf("record effect: %w", err)
	}
	if err := h.publish(ctx, tx, Published{ID: m.ID}); err != nil {
		return err
	}
	if err := dwell(ctx, m.Payload.delay()); err != nil {
		return err
	}
	switch {
	case m.Payload.Poison:
		return handler.Poison(errAsked)
	case m.Attempt <= m.Payload.Fails:
		return errAsked
	}
	return nil
}

// LogRun is plain: it writes a row when it begins and one when it ends, and commits each at once.
func (h *Handlers) LogRun(ctx context.Context, m handler.Message[Job]) error {
	if m.Payload.Stubborn {
		ctx = context.WithoutCancel(ctx)
	}
	if err := h.log(ctx, m, stepBegan); err != nil {
		return err
	}
	if err := dwell(ctx, m.Payload.delay()); err != nil {
		return err
	}
	switch {
	case m.Payload.Poison || m.Payload.PoisonRun:
		return handler.Poison(errors.Join(errAsked, h.log(ctx, m, stepPoisoned)))
	case m.Attempt <= m.Payload.Fails:
		return errors.Join(errAsked, h.log(ctx, m, stepFailed))
	}
	return h.log(ctx, m, stepDone)
}

// logTimeout is the timeout for writing one row. A handler whose database is down fails.
const logTimeout = 30 * time.Second

func (h *Handlers) log(ctx context.Context, m handler.Message[Job], step string) error {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	_, err := h.effects.ExecContext(ctx, Text(h.effects, "INSERT INTO runs (message_id, attempt, pid, step) VALUES ($1, $2, $3, $4)"),
		m.ID, m.Attempt, os.Getpid(), step)
	if err != nil {
		return fmt.Errorf("log run: %w", err)
	}
	return nil
}

// dwell simulates the handler's work.
func dwell(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
