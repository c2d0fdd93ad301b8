package workload

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
)

// schema has the tables that handlers write to. There is no constraint that could hide a second
// effect.
const schema = `
CREATE TABLE IF NOT EXISTS effects (
	message_id text NOT NULL, attempt integer NOT NULL, pid integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE IF NOT EXISTS runs (
	message_id text NOT NULL, attempt integer NOT NULL, pid integer NOT NULL, step text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`

// The steps that rows of runs have. Each run begins, and ends in one of three ways unless it was
// interrupted.
const (
	stepBegan    = "began"
	stepDone     = "done"
	stepFailed   = "failed"
	stepPoisoned = "poisoned"
)

// history keeps what cleanup deletes, in the transaction that deletes it. The ledger reads the views, so it also finds
// what was deleted too early and stored anew.
const history = `
CREATE TABLE deleted_messages (LIKE inbox_messages);
CREATE INDEX ON deleted_messages (id);
CREATE TABLE deleted_statuses (LIKE inbox_handler_statuses);
CREATE FUNCTION keep_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO %s SELECT ($1).*', TG_ARGV[0]) USING OLD;
	RETURN NULL;
END $$;
CREATE TRIGGER keep_deleted AFTER DELETE ON inbox_messages
	FOR EACH ROW EXECUTE FUNCTION keep_deleted('deleted_messages');
CREATE TRIGGER keep_deleted AFTER DELETE ON inbox_handler_statuses
	FOR EACH ROW EXECUTE FUNCTION keep_deleted('deleted_statuses');
CREATE VIEW all_messages AS SELECT * FROM inbox_messages UNION ALL SELECT * FROM deleted_messages;
CREATE VIEW all_statuses AS SELECT * FROM inbox_handler_statuses UNION ALL SELECT * FROM deleted_statuses;
CREATE VIEW job_messages AS SELECT * FROM all_messages WHERE type = '` + JobType + `';
CREATE VIEW job_statuses AS SELECT * FROM all_statuses WHERE handler_key IN ('` + EffectKey + `', '` + RunKey + `')`

// KeepDeleted prepares the inbox's tables, which exist, for the ledger.
func KeepDeleted(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, history); err != nil {
		return fmt.Errorf("keep what cleanup deletes: %w", err)
	}
	return nil
}

// CreateTables makes the tables that handlers write to.
func CreateTables(ctx context.Context, db *sql.DB) error {
	for _, tables := range []string{schema, steps} {
		if _, err := db.ExecContext(ctx, tables); err != nil {
			return fmt.Errorf("create the handlers' tables: %w", err)
		}
	}
	return nil
}

// Handlers are the two handlers of every message.
type Handlers struct {
	effects *sql.DB
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
	case m.Payload.Poison:
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
	_, err := h.effects.ExecContext(ctx, "INSERT INTO runs (message_id, attempt, pid, step) VALUES ($1, $2, $3, $4)", m.ID,
		m.Attempt, os.Getpid(), step)
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
