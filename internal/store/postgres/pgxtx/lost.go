package pgxtx

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// session is the server's session of a connection that was closed inside a transaction. If the network lets nothing
// through, the server does not notice, and the transaction keeps its locks.
//
// The server's process ID and the moment of the begin identify the transaction: process IDs are used again, and a
// pooler gives its clients made-up ones.
type session struct {
	pid         uint32
	sent, begun time.Time // the server began the transaction in between, monotonic
}

// endSQL ends the given sessions that are still in the same transaction and wait for their client: between two
// statements or, if the network failed during a statement, for its rest. It returns the positions of all that are in
// that transaction. Times are in microseconds before now. The statement reads the server's list of sessions.
const endSQL = `
SELECT l.position - 1, CASE WHEN a.state LIKE 'idle in transaction%' OR a.wait_event_type = 'Client' THEN pg_terminate_backend(a.pid) END
FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS l(pid, sent, begun, position)
JOIN pg_stat_activity a ON a.pid = l.pid AND a.datname = current_database() AND a.pid <> pg_backend_pid() AND pg_has_role(a.usesysid, 'USAGE')
	AND a.xact_start BETWEEN clock_timestamp() - l.sent * interval '1 microsecond' AND clock_timestamp() - l.begun * interval '1 microsecond'`

const (
	// closeTime is how long the server has to notice by itself that a connection was closed.
	closeTime = time.Second
	// maxPause is the longest pause between two tries to end sessions.
	maxPause = 8 * time.Second
	// endTimeout bounds one try.
	endTimeout = 5 * time.Second
	// clockError is by how much the server's clock and ours may disagree about a session's age.
	clockError = time.Second
	// maxLost bounds how many sessions of a pool are remembered. The oldest are left to the server.
	maxLost = 1000
)

// lost holds the lost sessions of each pool that has some, and who watches which pool.
var lost = struct {
	sync.Mutex
	pools    map[*sql.DB]*ending
	watchers map[*watcher]bool
}{pools: map[*sql.DB]*ending{}, watchers: map[*watcher]bool{}}

// ending ends the lost sessions of one pool. Its timer runs while there are any.
type ending struct {
	pool     *sql.DB
	sessions []session
	retry    routine.Backoff
	timer    *time.Timer
}

type watcher struct {
	pool    *sql.DB
	changed func(open int, since time.Time)
}

// Watch calls changed after each try to end the sessions of a pool's lost connections, with how many the server had in
// their transaction, and when the oldest of these began. After stop it is not called again. It must not use this
// package.
func Watch(pool *sql.DB, changed func(open int, since time.Time)) (stop func()) {
	w := &watcher{pool, changed}
	lost.Lock()
	defer lost.Unlock()
	lost.watchers[w] = true
	return func() {
		lost.Lock()
		defer lost.Unlock()
		delete(lost.watchers, w)
	}
}

// lose has the server end a session, unless it has ended by itself soon.
func lose(pool *sql.DB, s session) {
	lost.Lock()
	defer lost.Unlock()
	e := lost.pools[pool]
	if e == nil {
		e = &ending{pool: pool, retry: routine.Backoff{First: closeTime, Max: maxPause}}
		lost.pools[pool] = e
		e.timer = time.AfterFunc(closeTime, e.run)
	}
	e.retry.Reset()
	e.sessions = append(e.sessions[max(0, len(e.sessions)-maxLost+1):], s)
}

// run tries to end the sessions, and again after a pause as long as some are left.
func (e *ending) run() {
	lost.Lock()
	tried := slices.Clone(e.sessions)
	lost.Unlock()
	open, err := endSessions(e.pool, tried)
	lost.Lock()
	defer lost.Unlock()
	closed := err != nil && strings.Contains(err.Error(), "sql: database is closed")
	if err == nil {
		e.sessions = slices.DeleteFunc(e.sessions, func(s session) bool {
			return slices.Contains(tried, s) && !slices.Contains(open, s)
		})
	}
	if closed || len(e.sessions) == 0 {
		delete(lost.pools, e.pool)
	} else {
		e.timer.Reset(e.retry.Next())
	}
	if err != nil && !closed {
		return
	}
	var since time.Time
	if len(open) > 0 {
		since = open[0].begun
	}
	for w := range lost.watchers {
		if w.pool == e.pool {
			w.changed(len(open), since)
		}
	}
}

// endSessions ends the sessions that wait for their client. It returns those that were still in their transaction.
func endSessions(pool *sql.DB, sessions []session) (open []session, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	pids, sent, begun := make([]int32, len(sessions)), make([]int64, len(sessions)), make([]int64, len(sessions))
	for i, s := range sessions {
		pids[i] = int32(s.pid)
		sent[i] = (time.Since(s.sent) + endTimeout + clockError).Microseconds()
		begun[i] = (time.Since(s.begun) - clockError).Microseconds()
	}
	rows, err := pool.QueryContext(ctx, endSQL, pids, sent, begun)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var position int
		var ended *bool
		if err := rows.Scan(&position, &ended); err != nil {
			return nil, err
		}
		open = append(open, sessions[position])
	}
	return open, rows.Err()
}
