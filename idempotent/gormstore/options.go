package gormstore

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/dialect"
)

// Options configure a Store. Start from DefaultOptions: zero values are values.
type Options struct {
	// Schema is the PostgreSQL schema of the table. Do not set it on SQLite, which has none. Default "", the search
	// path.
	Schema string `yaml:"schema" env:"SCHEMA"`
	// TablePrefix begins the table's name. Do not change it while messages may be delivered again: their markers stay
	// under the old name. Default "", which is "inbox_".
	TablePrefix string `yaml:"table_prefix" env:"TABLE_PREFIX"`
	// LockTimeout is how long a run waits for another one of the same key before it returns ErrInProgress, and on
	// SQLite for any writer; less if its context ends before. Do not set it above the time that your transport gives a
	// handler: the wait is part of that. Each call that waits holds a connection of the pool; do not set it long where
	// the pool is small. 1 ms to 24 h; default 10 s.
	LockTimeout time.Duration `yaml:"lock_timeout" env:"LOCK_TIMEOUT"`
	// StatementTimeout bounds each database call of the store, without the wait for locks: begin, marker, commit,
	// rollback, Processed, a batch of Cleanup. The body's calls are bounded by its context alone. Do not lower it below
	// the time of a commit on a busy day: the store has to look up the outcome of a commit that timed out. At most 24
	// h; default 10 s.
	StatementTimeout time.Duration `yaml:"statement_timeout" env:"STATEMENT_TIMEOUT"`
	// BatchSize is how many markers one statement of Cleanup deletes. Do not raise it far: on SQLite all other writers
	// wait for it. Default 1,000.
	BatchSize int `yaml:"batch_size" env:"BATCH_SIZE"`
	// Isolation is the level of the transactions that the store begins and the body runs in: sql.LevelDefault,
	// LevelReadCommitted, LevelRepeatableRead or LevelSerializable. LevelDefault is READ COMMITTED, under any
	// default_transaction_isolation of the role or the database. Do not set it where the body does not need it: above
	// READ COMMITTED runs that get in each other's way begin again, see MaxAttempts. SQLite's transactions are always
	// serializable: LevelDefault and LevelSerializable alone are allowed there. In an inbox's Inline channel the
	// transactions are the inbox's, see TxIsolation of processor.Options. It has no text form: code sets it, not a
	// file. Default sql.LevelDefault (contract 8.2).
	Isolation sql.IsolationLevel `yaml:"-" env:"-"`
	// MaxAttempts is how often a body runs at most in one call of Run: PostgreSQL may roll its transaction back for a
	// deadlock or a serialization failure, and then it is run again. Set 1 where a body has effects that no rollback
	// undoes and the transport should set the pace of redelivery; do not change it for any other reason. Default 5.
	MaxAttempts int `yaml:"max_attempts" env:"MAX_ATTEMPTS"`
	// Clock replaces the system clock, which markers' times are taken from, for tests. Do not use it to shift time in
	// production. Default nil, the system's.
	Clock idempotent.Clock `yaml:"-" env:"-"`
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options {
	return Options{LockTimeout: 10 * time.Second, StatementTimeout: 10 * time.Second, BatchSize: 1000, MaxAttempts: 5}
}

// maxTimeout is longer than anybody waits, and shorter than PostgreSQL's limit of 24 days, above which every marker
// would fail.
const maxTimeout = 24 * time.Hour

// validate reports every option that is out of range, by name, with its value and what is allowed.
func (o Options) validate(of *dialect.Dialect) error {
	var problems []error
	refuse := func(name string, value any, allowed string) {
		problems = append(problems, fmt.Errorf("option %s = %v: must be %s", name, value, allowed))
	}
	if o.LockTimeout < time.Millisecond || o.LockTimeout > maxTimeout {
		refuse("LockTimeout", o.LockTimeout, "1ms to 24h")
	}
	if o.StatementTimeout <= 0 || o.StatementTimeout > maxTimeout {
		refuse("StatementTimeout", o.StatementTimeout, "more than 0, to 24h")
	}
	if o.BatchSize < 1 {
		refuse("BatchSize", o.BatchSize, "1 or more")
	}
	if o.MaxAttempts < 1 {
		refuse("MaxAttempts", o.MaxAttempts, "1 or more")
	}
	if allowed := of.RefusedIsolation(o.Isolation); allowed != "" {
		refuse("Isolation", o.Isolation, allowed+" on "+of.Name)
	}
	return errors.Join(problems...)
}
