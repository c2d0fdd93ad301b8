package handler

import "fmt"

// Deleted counts what one cleanup deleted (contract 6).
type Deleted struct {
	Messages int64
	Statuses int64
	// Unarchived counts messages that stay because the archive function failed with them (contract 6.3).
	Unarchived int64
	// Markers, Audit and Rejected are zero unless their options are set.
	Markers  int64
	Audit    int64
	Rejected int64
	// Workers and Leases count the rows of vanished processes.
	Workers int64
	Leases  int64
}

// StillBadError says why a rejected record still cannot be accepted. Its row stays, with this as its reason.
type StillBadError struct {
	// ID is the ID of the rejected message.
	ID string
	// Channel is the channel whose decoder read the record.
	Channel string
	// Err is the reason: an *acceptor.InvalidError, or an error of package envelope.
	Err error
}

// Error names the ID and the reason.
func (e *StillBadError) Error() string {
	return fmt.Sprintf("rejected message %q is still bad: %v", e.ID, e.Err)
}

// Unwrap returns the reason.
func (e *StillBadError) Unwrap() error { return e.Err }
