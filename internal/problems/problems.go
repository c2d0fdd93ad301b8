// Package problems keeps what is wrong with a declaration as a list, so that
// each part of a joined error can name where it belongs.
package problems

import (
	"errors"
	"fmt"
)

// Prefix puts prefix before each part of err: errors.Join prints one part per
// line, and a prefix of the whole would stand on the first line only. It
// returns nil for nil.
func Prefix(prefix string, err error) error {
	parts := Parts(err)
	for i, part := range parts {
		parts[i] = fmt.Errorf("%s%w", prefix, part)
	}
	return errors.Join(parts...)
}

// Parts returns what errors.Join has joined, nested joins included; an error
// that joins nothing is its own only part, and nil has none.
func Parts(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || err.Error() != errors.Join(joined.Unwrap()...).Error() {
		return []error{err} // fmt.Errorf with several %w has words of its own
	}
	var parts []error
	for _, part := range joined.Unwrap() {
		parts = append(parts, Parts(part)...)
	}
	return parts
}
