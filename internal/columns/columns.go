// Package columns has what the columns of an inbox's tables hold, and how their names are written in
// SQL. Package models and everything that fills or searches the tables share it.
package columns

import "strings"

// The limits of columns in characters (contract 3.1, 3.2). Longer text makes a message invalid. Only
// LastError is cut.
const (
	MaxMessageID     = 200
	MaxTransportName = 50
	MaxType          = 255
	MaxSource        = 1024
	MaxContentType   = 255
	MaxHandlerKey    = 200
	MaxChannel       = 200
	MaxTopic         = 255
	MaxLock          = 200
	MaxLastError     = 2000
)

// MaxPrefix and MaxSchema keep every index name within PostgreSQL's 63 bytes.
const (
	MaxPrefix = 30
	MaxSchema = 63
)

// DefaultPrefix begins every table name unless models.Naming has another prefix.
const DefaultPrefix = "inbox_"

// Quote quotes a qualified name for plain SQL on any supported dialect: orders.inbox_messages
// becomes "orders"."inbox_messages".
func Quote(name string) string {
	return `"` + strings.ReplaceAll(name, ".", `"."`) + `"`
}
