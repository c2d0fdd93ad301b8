package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"maps"
	"sync"
	"time"
	"weak"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
)

// renewals are when RenewSessions last closed connections of a pool, in Unix seconds. Entries of earlier seconds are
// dropped.
var renewals = struct {
	sync.Mutex
	at map[weak.Pointer[sql.DB]]int64
}{at: map[weak.Pointer[sql.DB]]int64{}}

// RenewSessions closes the pool's idle connections, at most once a second, if a statement has failed because its
// session is read-only. Such a session may stay read-only after the database no longer is: it keeps the default
// (default_transaction_read_only) that it began with, and after a failover it may be the standby's. Sessions in use are
// renewed when one of their statements fails.
func RenewSessions(db *gorm.DB, err error) {
	if !has(err, dialect.ReadOnly) {
		return
	}
	pool, err := db.DB()
	if err != nil || !renewsNow(pool) { // it may be no pool of database/sql
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for n := pool.Stats().Idle; n > 0; n-- {
		conn, err := pool.Conn(ctx)
		if err != nil {
			return
		}
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = conn.Close()
	}
}

// renewsNow reports whether the pool's connections were not closed in this second, and counts them as closed.
func renewsNow(pool *sql.DB) bool {
	renewals.Lock()
	defer renewals.Unlock()
	now := time.Now().Unix()
	maps.DeleteFunc(renewals.at, func(_ weak.Pointer[sql.DB], at int64) bool { return at != now })
	if _, closed := renewals.at[weak.Make(pool)]; closed {
		return false
	}
	renewals.at[weak.Make(pool)] = now
	return true
}
