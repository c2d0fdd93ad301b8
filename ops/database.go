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
)

// text fills the tables' names and what is the dialect's own into a statement.
// Its parameters are $1, $2 and so on; for SQLite they are ?1, ?2: drivers
// disagree about the others.
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

// stamp makes an argument of a time.
func (o *Ops) stamp(t time.Time) any {
	if o.sqlite {
		return store.SQLiteTime(t)
	}
	return t.UTC()
}

// within bounds one look at the database.
func (o *Ops) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, o.statementTimeout)
}

// connect waits for one of the connections that this Ops may use. Nobody who has
// one may wait for another: all would wait for each other.
func (o *Ops) connect(ctx context.Context) (release func(), err error) {
	select {
	case o.inUse <- struct{}{}:
		return func() { <-o.inUse }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a connection (option Connections is %d): %w", o.connections, ctx.Err())
	}
}

// fewTimeouts is how many statement timeouts a whole answer may take.
const fewTimeouts = 3

// bounded bounds a whole answer, however many looks it takes: of a database that
// is slow, but never so slow that a single one runs out of time, operators get
// no answer rather than have it work for minutes.
func (o *Ops) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, fewTimeouts*o.statementTimeout)
}

// pool runs statements outside any transaction, straight on the connection
// pool: the user's logger and plugins are not involved, and everything reaches
// the primary (contract 3.7).
func (o *Ops) pool(ctx context.Context) gorm.ConnPool {
	return o.singles.Pool(ctx)
}

// readRows runs a reading statement outside any transaction.
func readRows[T any](
	ctx context.Context, o *Ops, statement string, scan func(*sql.Rows, *T) error, args ...any,
) ([]T, error) {
	release, err := o.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := o.within(ctx)
	defer cancel()
	return query(ctx, o, o.pool(ctx), statement, scan, args...)
}

// query collects the rows of a statement.
func query[T any](
	ctx context.Context, o *Ops, pool gorm.ConnPool, statement string, scan func(*sql.Rows, *T) error, args ...any,
) ([]T, error) {
	return store.Query(ctx, pool, o.text(statement), scan, args...)
}

// exec returns how many rows a statement affected.
func (o *Ops) exec(ctx context.Context, pool gorm.ConnPool, statement string, args ...any) (int64, error) {
	return store.Exec(ctx, pool, o.text(statement), args...)
}

// Changes nothing, by meta's primary key. A SQLite transaction that reads
// before it writes fails where another has written in between, which no
// waiting helps against: so each of ours that acts begins with this write.
const beginWriting = `UPDATE {meta} SET "value" = "value" WHERE "key" = 'schema_version'`

// attempts bounds how often a transaction is tried again that PostgreSQL rolled
// back because it and another waited for each other.
const attempts = 3

// act runs work in a transaction of at most the statement timeout, and commits
// what it did unless it fails.
func (o *Ops) act(ctx context.Context, work func(ctx context.Context, tx *gorm.DB) error) error {
	release, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := o.within(ctx)
	defer cancel()
	// Said outright: the server's default may be another.
	var isolation []*sql.TxOptions
	if !o.sqlite {
		isolation = append(isolation, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	}
	for attempt := 1; ; attempt++ {
		err := o.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if o.sqlite {
				if _, err := o.exec(ctx, tx.Statement.ConnPool, beginWriting); err != nil {
					return err
				}
			}
			return work(ctx, tx)
		}, isolation...)
		if err == nil || attempt == attempts || ctx.Err() != nil || !store.IsSerialization(err) {
			return store.WithContextError(ctx, err)
		}
	}
}

// jsonOf makes an argument of a list.
func jsonOf(list any) (string, error) {
	text, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("encode arguments: %w", err)
	}
	return string(text), nil
}
