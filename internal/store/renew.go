package store

import (
	"context"
	"database/sql/driver"
	"sync/atomic"
	"time"

	"gorm.io/gorm"
)

// readOnly is the SQLSTATE of a statement that would write in a read-only transaction.
const readOnly = "25006"

// renewed is when RenewSessions last closed connections, in Unix seconds.
var renewed atomic.Int64

// RenewSessions closes the pool's idle connections, at most once a second, if a statement has failed because
// its session is read-only. Such a session may stay read-only after the database no longer is: it keeps the
// default (default_transaction_read_only) that it began with, and after a failover it may be the standby's.
// Sessions in use are renewed when one of their statements fails.
func RenewSessions(db *gorm.DB, err error) {
	if err == nil || SQLState(err) != readOnly {
		return
	}
	now := time.Now().Unix()
	if before := renewed.Load(); before == now || !renewed.CompareAndSwap(before, now) {
		return
	}
	pool, err := db.DB()
	if err != nil {
		return // no pool of database/sql
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
