package scratch

import (
	"fmt"
	"os"
	"strings"
)

// Calls is a file in which handlers note each call, outside their transactions:
// it tells how often they ran, whatever came of it. Several processes may write
// the same one. It is safe for concurrent use.
type Calls struct{ file *os.File }

// OpenCalls opens the file, which may be there or not.
func OpenCalls(file string) (*Calls, error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("calls: %w", err)
	}
	return &Calls{f}, nil
}

// Note notes a call for what has that ID.
func (c *Calls) Note(id string) error {
	// One write appends one line, so that a kill cannot tear it.
	if _, err := c.file.WriteString(id + "\n"); err != nil {
		return fmt.Errorf("note the call: %w", err)
	}
	return nil
}

// Close closes the file.
func (c *Calls) Close() error { return c.file.Close() }

// ReadCalls reads the IDs, call by call.
func ReadCalls(file string) ([]string, error) {
	calls, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read calls: %w", err)
	}
	return strings.Fields(string(calls)), nil
}
