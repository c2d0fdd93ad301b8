package demo

import (
	"fmt"
	"os"
	"strings"
)

// LineFile is a file that several processes append lines to. Handlers note their calls in one, outside
// their transactions: it shows how often they ran. It is safe for concurrent use.
type LineFile struct{ file *os.File }

// OpenLines opens the file, and creates it if it is missing.
func OpenLines(file string) (*LineFile, error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &LineFile{f}, nil
}

// Append appends a line in one write, so that a kill cannot tear it.
func (l *LineFile) Append(line string) error {
	_, err := l.file.WriteString(line + "\n")
	return err
}

// Close closes the file.
func (l *LineFile) Close() error { return l.file.Close() }

// ReadLines returns the lines, which must not contain spaces.
func ReadLines(file string) ([]string, error) {
	lines, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read lines: %w", err)
	}
	return strings.Fields(string(lines)), nil
}
