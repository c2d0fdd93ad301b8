package pgdialect

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gorm-inbox/inbox/internal/dialect"
)

// The classes of errors by SQLSTATE, or else by the longest beginning of it that is there.
const (
	refused   = dialect.Refused
	transient = dialect.Transient
	lost      = dialect.Transient | dialect.Lost | dialect.Unknown
)

var classes = map[string]dialect.Class{
	"":      refused,
	"08":    lost,                           // the connection
	"08P01": dialect.Lost | dialect.Unknown, // protocol violation: the same call would fail again
	"22":    refused | dialect.Data,
	"23":    refused | dialect.Data,
	"23505": refused | dialect.Data | dialect.Duplicate,
	"25006": refused | transient | dialect.ReadOnly, // such as a standby that was the primary
	"40":    refused | transient,                    // rolled back
	"40001": refused | transient | dialect.Serialization | dialect.Snapshot,
	"40P01": refused | transient | dialect.Serialization, // a deadlock
	"53":    refused | transient,                         // out of connections, memory, disk
	"53400": refused | transient | dialect.OfStatement,   // a limit for the statement, such as temp_file_limit
	"54":    refused | dialect.Data,
	"55P03": refused | transient,                                          // lock not available
	"57014": refused | transient | dialect.OfStatement | dialect.TimedOut, // cancelled, as by statement_timeout
	"57P":   lost,                                                         // shutting down, starting up, dropped
	"57P02": lost | dialect.Crash,                                         // another server process crashed
	"57P03": lost | dialect.Crash,                                         // so the server does not accept connections
	"58":    transient | dialect.Unknown,                                  // system error
	"58P01": transient | dialect.Unknown | dialect.OfStatement,            // a file that the statement names is missing
	"58P02": transient | dialect.Unknown | dialect.OfStatement,            // or is there already
}

func classify(err error) (dialect.Class, bool) {
	state := SQLState(err)
	if state == "" {
		return 0, false
	}
	// PgBouncer has one SQLSTATE for all that ends a connection, such as that the server has gone. A statement that
	// violates the protocol again and again loses its connection each time, and is charged for that.
	if ended, ok := errors.AsType[*pgconn.PgError](err); ok && state == "08P01" && ended.Severity == "FATAL" {
		return lost, true
	}
	for n := len(state); ; n-- {
		if class, known := classes[state[:n]]; known {
			return class, true
		}
	}
}

// SQLState returns the SQLSTATE of an error, empty for errors that are not PostgreSQL's. The errors
// of both pgx and lib/pq have the method.
func SQLState(err error) string {
	var stated interface{ SQLState() string }
	if errors.As(err, &stated) && len(stated.SQLState()) == 5 {
		return stated.SQLState()
	}
	return ""
}
