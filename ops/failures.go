package ops

import (
	"context"
	"errors"
	"time"
)

// Failures are the failures of an inbox by their kind.
type Failures struct {
	// Groups with the most statuses come first.
	Groups []FailureGroup
	// Looked counts the statuses looked at; Capped: there are more, so that
	// counts may be higher and groups be missing.
	Looked int
	Capped bool
}

// FailureGroup is a handler's statuses that failed alike: with an error that is
// the same but for numbers, IDs, times, addresses and what stands in quotes.
type FailureGroup struct {
	// Fingerprint is for Filter.Fingerprint. It is made of what is shown: where
	// another redaction hook is set it is another.
	Fingerprint string
	HandlerKey  string
	// Error is the normalised error.
	Error string
	// Poisoned and Failing count the statuses.
	Poisoned int64
	Failing  int64
	// FirstSeen and LastSeen are of the messages: when the first and the last of
	// them were received.
	FirstSeen time.Time
	LastSeen  time.Time
	// Sample is the newest of them.
	Sample Status
}

// Failures groups the poisoned and the failing statuses that match the filter
// by fingerprint, of at most LookLimit statuses looked at. Filter.States may
// only name StatePoisoned and StateFailing; empty is both (contract 11.2).
func (o *Ops) Failures(ctx context.Context, filter Filter) (Failures, error) {
	return Failures{}, errors.ErrUnsupported
}
