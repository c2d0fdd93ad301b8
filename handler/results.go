package handler

import "fmt"

// Deleted counts what one cleanup deleted (contract 6).
type Deleted struct {
	Messages int64
	Statuses int64
	// Unarchived are messages whose rows the archive function failed to take,
	// and which therefore stay (contract 6.3).
	Unarchived int64
	// Markers, Audit and Rejected are zero unless their options are set.
	Markers  int64
	Audit    int64
	Rejected int64
	// Workers and Leases are those of processes that vanished.
	Workers int64
	Leases  int64
}

// StillBadError says why a rejected record cannot be accepted now either. Its
// row stays, with this as its reason.
type StillBadError struct {
	// ID is the rejected message's.
	ID string
	// Channel is the one whose decoder read it.
	Channel string
	// Err is the reason: an *acceptor.InvalidError, or one of package envelope's.
	Err error
}

// Error names the ID and the reason.
func (e *StillBadError) Error() string {
	return fmt.Sprintf("rejected message %q is still bad: %v", e.ID, e.Err)
}

// Unwrap returns the reason.
func (e *StillBadError) Unwrap() error { return e.Err }
