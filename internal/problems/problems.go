// Package problems treats joined errors as lists, so that each part can name where it belongs.
package problems

import (
	"errors"
	"fmt"
)

// Prefix puts prefix before each part of err. errors.Join prints one part per line, so a prefix of
// the whole error would be on the first line only. It returns nil for nil.
func Prefix(prefix string, err error) error {
	parts := Parts(err)
	for i, part := range parts {
		parts[i] = fmt.Errorf("%s%w", prefix, part)
	}
	return errors.Join(parts...)
}

// Parts returns the errors that errors.Join has joined, nested joins included. An error that joins nothing is its own
// only part; nil has no parts.
func Parts(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || err.Error() != errors.Join(joined.Unwrap()...).Error() {
		return []error{err} // fmt.Errorf with several %w adds text
	}
	var parts []error
	for _, part := range joined.Unwrap() {
		parts = append(parts, Parts(part)...)
	}
	return parts
}

// List collects what is wrong with a declaration.
type List []error

// Addf adds what fmt.Errorf makes of its arguments.
func (l *List) Addf(format string, args ...any) { *l = append(*l, fmt.Errorf(format, args...)) }
