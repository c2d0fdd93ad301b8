// Package columns has the limits and values of the columns of an inbox's tables, and how their names are written in
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

// MaxAttempts is how many attempts a status keeps, and MaxAttemptError how many characters of each
// one's error (contract 5.5).
const (
	MaxAttempts     = 10
	MaxAttemptError = 300
)

// The decisions that operators take about a halted partition, as requests and the workers' rows have them
// (contract 7.10).
const (
	// DecisionResume reads the record or the batch again.
	DecisionResume = "resume"
	// DecisionContinue goes on after a gap, or in a topic that was created again. Operators see it as a resume. It is
	// stored as another decision, so that a resume that was meant for a bad record is not taken for one of a gap that
	// was found at the same offset later.
	DecisionContinue = "continue"
	// DecisionSkip stores the record as rejected and goes on after it.
	DecisionSkip = "skip"
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
