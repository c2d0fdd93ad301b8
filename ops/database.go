package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

// text replaces the names of tables and the parts that differ by dialect in a statement. Its
// parameters are $1, $2 and so on. For SQLite they become ?1, ?2, because its drivers disagree
// about the other forms.
func (o *Ops) text(statement string) string {
	if text, ok := o.texts.Load(statement); ok {
		return text.(string)
	}
	text := statement
	if o.sqlite {
		text = strings.ReplaceAll(text, "$", "?")
	}
	text = o.names.Replace(text)
	o.texts.Store(statement, text)
	return text
}

// stamp returns a time as an argument of a statement.
func (o *Ops) stamp(t time.Time) any {
	if o.sqlite {
		return store.SQLiteTime(t)
	}
	return t.UTC()
}

// within limits one statement or transaction to the statement timeout.
func (o *Ops) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, o.opts.StatementTimeout)
}

// connect waits for one of the connections that this Ops may use. A caller that has one must not
// wait for a second: all callers might wait for each other.
func (o *Ops) connect(ctx context.Context) (release func(), err error) {
	select {
	case o.inUse <- struct{}{}:
		return func() { <-o.inUse }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a connection (option Connections is %d): %w", o.opts.Connections, ctx.Err())
	}
}

// fewTimeouts is how many statement timeouts a whole call may take.
const fewTimeouts = 3

// bounded limits a whole call, however many statements it takes. If the database is slow, but no
// single statement times out, the call fails instead of keeping the database busy for minutes.
func (o *Ops) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, fewTimeouts*o.opts.StatementTimeout)
}

// readRows runs a reading statement outside of any transaction.
func readRows[T any](
	ctx context.Context, o *Ops, statement string, scan func(*sql.Rows, *T) error, args ...any,
) ([]T, error) {
	return readFrom(ctx, o, o.singles, statement, scan, args...)
}

// readMany is readRows for a statement that may read thousands of rows (see store.Singles.WithoutJIT).
func readMany[T any](
	ctx context.Context, o *Ops, statement string, scan func(*sql.Rows, *T) error, args ...any,
) ([]T, error) {
	return readFrom(ctx, o, o.singles.WithoutJIT(), statement, scan, args...)
}

// readFrom runs a reading statement by itself. The application's logger and plugins are bypassed,
// and every statement reaches the primary (contract 3.7).
func readFrom[T any](ctx context.Context, o *Ops, from store.Singles, statement string,
	scan func(*sql.Rows, *T) error, args ...any) ([]T, error) {
	release, err := o.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := o.within(ctx)
	defer cancel()
	return query(ctx, o, from.Pool(ctx), statement, scan, args...)
}

// query returns the rows of a statement.
func query[T any](
	ctx context.Context, o *Ops, pool gorm.ConnPool, statement string, scan func(*sql.Rows, *T) error, args ...any,
) ([]T, error) {
	return store.Query(ctx, pool, o.text(statement), scan, args...)
}

// exec returns how many rows a statement affected.
func (o *Ops) exec(ctx context.Context, pool gorm.ConnPool, statement string, args ...any) (int64, error) {
	return store.Exec(ctx, pool, o.text(statement), args...)
}

// beginWriting changes nothing. It uses meta's primary key. A SQLite transaction that reads before
// it writes fails if another one has written in between, and waiting does not help. So each
// transaction that acts begins with this write.
const beginWriting = `UPDATE {meta} SET "value" = "value" WHERE "key" = 'schema_version'`

// attempts is how often a transaction is tried if PostgreSQL rolls it back because of a deadlock.
const attempts = 3

// act runs work in a transaction of at most the statement timeout, and commits unless work fails.
func (o *Ops) act(ctx context.Context, work func(ctx context.Context, tx *gorm.DB) error) error {
	release, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := o.within(ctx)
	defer cancel()
	// Set explicitly, because the server's default may differ.
	var isolation []*sql.TxOptions
	if !o.sqlite {
		isolation = append(isolation, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	}
	for attempt := 1; ; attempt++ {
		err := pgxtx.Session(o.db.WithContext(ctx), pgxtx.ByDeadline).Transaction(func(tx *gorm.DB) error {
			if o.sqlite {
				if _, err := o.exec(ctx, tx.Statement.ConnPool, beginWriting); err != nil {
					return err
				}
			}
			return work(ctx, tx)
		}, isolation...)
		store.RenewSessions(o.db, err)
		if err == nil || attempt == attempts || ctx.Err() != nil || !store.IsSerialization(err) {
			return store.WithContextError(ctx, err)
		}
	}
}

// jsonOf returns a list as an argument of a statement.
func jsonOf(list any) (string, error) {
	text, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("encode arguments: %w", err)
	}
	return string(text), nil
}
