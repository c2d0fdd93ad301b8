package store

import (
	"errors"
)

// ErrMarkerBusy says that another transaction was in the way of a marker and
// had not ended when waiting did: on PostgreSQL one that has inserted or is
// deleting the same, on SQLite any that has written.
var ErrMarkerBusy = errors.New("another transaction is in the marker's way")
