// Package operators has the queries and actions of operators, for package ops. It implements store.Operators for all
// dialects whose SQL has the same structure. A dialect gives the Form in which its SQL differs, and may replace any
// method.
package operators

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

// Form is how a dialect writes the statements of this package.
type Form struct {
	base.Form
	// Parts replace the parts of a statement that stand in braces.
	Parts map[string]string
	// TextTimes means that times are texts, which are compared and passed as such.
	TextTimes bool
	// WritesFirst means that a transaction has to begin with a write: one that reads before fails if another one has
	// written in between.
	WritesFirst bool
}

// Queries implements store.Operators. It is safe for concurrent use.
type Queries struct {
	db    base.Database
	form  Form
	parts *strings.Replacer
	texts *sync.Map // statement → in the dialect's form, before the tables' names are filled in
}

// New returns the queries on a database.
func New(db base.Database, form Form) Queries {
	var parts []string
	for part, text := range form.Parts {
		parts = append(parts, "{"+part+"}", text)
	}
	return Queries{db: db, form: form, parts: strings.NewReplacer(parts...), texts: new(sync.Map)}
}

// text returns a statement in the dialect's form, with the tables' names. Its parameters are $1, $2 and so on.
func (q Queries) text(statement string) string {
	text, ok := q.texts.Load(statement)
	if !ok {
		text = q.parts.Replace(strings.ReplaceAll(statement, "$", q.form.Parameter))
		q.texts.Store(statement, text)
	}
	return q.db.Text(text.(string))
}

// query returns the rows of a statement.
func query[T any](ctx context.Context, q Queries, pool gorm.ConnPool, statement string,
	scan func(*sql.Rows, *T) error, args ...any) ([]T, error) {
	return store.Query(ctx, pool, q.text(statement), scan, args...)
}

// one returns the first row of a statement; nil if there is none.
func one[T any](ctx context.Context, q Queries, pool gorm.ConnPool, statement string,
	scan func(*sql.Rows, *T) error, args ...any) (*T, error) {
	rows, err := query(ctx, q, pool, statement, scan, args...)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// number returns the number that a statement returns.
func (q Queries) number(ctx context.Context, pool gorm.ConnPool, statement string, args ...any) (int64, error) {
	found, err := one(ctx, q, pool, statement, store.Value[int64], args...)
	if err != nil {
		return 0, err
	}
	return *found, nil
}

// exec returns how many rows a statement affected.
func (q Queries) exec(ctx context.Context, pool gorm.ConnPool, statement string, args ...any) (int64, error) {
	return store.Exec(ctx, pool, q.text(statement), args...)
}

// listTime returns the time of a store.ListPlace as an argument.
func (q Queries) listTime(at string) (any, error) {
	if q.form.TextTimes {
		return at, nil
	}
	var t store.Stamp
	err := t.Scan(at)
	return t.Time, err
}

// listed is a time as store.ListTime returns it: as the database stores it if that is a text.
type listed string

func (l *listed) Scan(source any) error {
	switch source := source.(type) {
	case time.Time:
		*l = listed(store.ListTime(source))
	case string:
		*l = listed(source)
	case []byte:
		*l = listed(source)
	}
	return nil
}

func (q Queries) ExactTimes() bool { return !q.form.TextTimes }

// beginWriting changes nothing. It uses meta's primary key. A SQLite transaction that reads before it writes fails if
// another one has written in between, and waiting does not help. So each transaction that acts begins with this write.
const beginWriting = `UPDATE {meta} SET "value" = "value" WHERE "key" = 'schema_version'`

// tries is how often a transaction is tried.
const tries = 3

func (q Queries) Act(ctx context.Context, work func(tx *gorm.DB) error) error {
	for try := 1; ; try++ {
		err := q.db.Singles.Followed(ctx, func() error {
			return pgxtx.Session(q.db.DB.WithContext(ctx), pgxtx.ByDeadline).Transaction(func(tx *gorm.DB) error {
				if q.form.WritesFirst {
					if _, err := q.exec(ctx, tx.Statement.ConnPool, beginWriting); err != nil {
						return err
					}
				}
				return work(tx)
			}, q.db.Isolation)
		})
		store.RenewSessions(q.db.DB, err)
		again := store.IsSerialization(err) || errors.Is(err, store.ErrLayoutChanged)
		if err == nil || try == tries || ctx.Err() != nil || !again {
			return store.WithContextError(ctx, err)
		}
	}
}

// inboxName uses meta's primary key.
const inboxName = `SELECT "value" FROM {meta} WHERE "key" = 'name'`

func (q Queries) InboxName(ctx context.Context, pool gorm.ConnPool) (string, error) {
	name, err := one(ctx, q, pool, inboxName, store.Value[string])
	if err != nil || name == nil {
		return "", err
	}
	return *name, nil
}
