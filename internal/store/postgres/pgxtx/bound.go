package pgxtx

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Bound is how PostgreSQL notices that the client of a transaction has vanished without closing its connection: the
// client's host is gone, or a firewall has forgotten the connection. Otherwise the transaction keeps its locks until
// TCP gives the connection up, by default after more than two hours.
type Bound int

const (
	// ByDeadline ends the session when the client sends nothing for as long as its context has left at the begin,
	// rounded up to a second. It is for transactions that do nothing but run statements.
	ByDeadline Bound = iota
	// ByKeepalive has the server's TCP probe the client's host, so that a session ends within 40 seconds after the host
	// has vanished. It is for transactions in which application code runs, which may be idle for any time.
	ByKeepalive
)

// idleWithoutDeadline bounds a transaction whose context has no deadline.
const idleWithoutDeadline = time.Minute

// keepalives have TCP send a probe after 20 seconds of silence, four of them five seconds apart, and wait for 40
// seconds until sent data is acknowledged: TCP does not probe during that wait. They do nothing on a Unix socket, whose
// client cannot vanish silently.
var keepalives = []string{"set local tcp_keepalives_idle = 20", "set local tcp_keepalives_interval = 5",
	"set local tcp_keepalives_count = 4", "set local tcp_user_timeout = 40000"}

// keepaliveSQL returns a statement that makes keepalives settings of the session if its process ID is pid. Otherwise it
// does nothing and returns no row: a pooler gives its clients made-up IDs, and other clients use its sessions, too.
func keepaliveSQL(pid uint32) string {
	return fmt.Sprintf("%s WHERE pg_backend_pid() = %d", oneStatement(keepalives, false), pid)
}

// settings returns the SET LOCAL statements that set the bound for one transaction.
func (b Bound) settings(ctx context.Context) []string {
	if b == ByKeepalive {
		return keepalives
	}
	idle := idleWithoutDeadline
	if deadline, ok := ctx.Deadline(); ok {
		idle = time.Until(deadline)
	}
	// Whole seconds, rounded up: pg_stat_statements keeps an entry for each value of a setting.
	return []string{fmt.Sprintf("set local idle_in_transaction_session_timeout = %d",
		int(math.Ceil(max(idle.Seconds(), 1)))*1000)}
}
