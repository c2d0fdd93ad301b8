package groups

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gorm-inbox/inbox/bench/trial"
)

const (
	xminFree = "no snapshot"
	xminHeld = "a snapshot throughout"
)

// Xmin measures whether a long transaction elsewhere, such as a dump or a report, slows down the
// inbox. While it is open, vacuum cannot remove the dead rows that claims and completions leave.
func Xmin() trial.Group {
	return trial.Group{
		Name: "xmin", Unit: "message",
		About: "alone, and while another connection holds a REPEATABLE READ snapshot throughout",
		Variants: []trial.Variant{
			{Name: xminFree, New: xmin(false)},
			{Name: xminHeld, New: xmin(true)},
		},
		Lines: []trial.Line{trial.Ratio("held_xmin_vs_free", xminHeld, xminFree, 0.85)},
	}
}

func xmin(held bool) newTrial {
	alone := endToEndAs(100_000, 20_000, processOptions()...)
	if !held {
		return alone
	}
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		t, err := alone(ctx, env)
		if err != nil {
			return nil, err
		}
		check, closes := t.Check, t.Close
		reader, err := holdSnapshot(ctx, env.DSN)
		if err != nil {
			closes()
			return nil, err
		}
		t.Check = func(ctx context.Context) error { return errors.Join(reader.check(ctx), check(ctx)) }
		t.Close = func() { reader.close(); closes() }
		return t, nil
	}
}

// snapshot is a transaction that sees the tables as they were when it began.
type snapshot struct {
	conn   *pgx.Conn
	before int
}

func holdSnapshot(ctx context.Context, dsn string) (*snapshot, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	s := &snapshot{conn: conn}
	if _, err = conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ"); err == nil {
		s.before, err = s.messages(ctx)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("hold a snapshot: %w", err)
	}
	return s, nil
}

func (s *snapshot) messages(ctx context.Context) (n int, err error) {
	err = s.conn.QueryRow(ctx, "SELECT count(*) FROM inbox_messages").Scan(&n)
	return n, err
}

// check returns an error unless the snapshot is still open. Otherwise it would see new messages.
func (s *snapshot) check(ctx context.Context) error {
	n, err := s.messages(ctx)
	if err == nil && n != s.before {
		err = fmt.Errorf("it sees %d messages, at its beginning %d", n, s.before)
	}
	if err != nil {
		return fmt.Errorf("the snapshot was not held: %w", err)
	}
	return nil
}

func (s *snapshot) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = s.conn.Close(ctx)
}
