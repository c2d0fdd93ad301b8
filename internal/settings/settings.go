// Package settings has what packages with an Options struct share.
package settings

import "reflect"

// With returns options as the functions change them, in order. It skips functions that are nil.
func With[T any, F ~func(*T)](options T, changes []F) T {
	for _, change := range changes {
		if change != nil {
			change(&options)
		}
	}
	return options
}

// Keep restores the fields of after that only code can set, those with the tag `yaml:"-"`, where they became zero and
// before has a value. So assigning options that were loaded from a file replaces the options that a file can set, and
// leaves a logger, hooks and the like alone.
func Keep[T any](before T, after *T) {
	was, is := reflect.ValueOf(before), reflect.ValueOf(after).Elem()
	for i := range is.NumField() {
		if is.Type().Field(i).Tag.Get("yaml") == "-" && is.Field(i).IsZero() {
			is.Field(i).Set(was.Field(i))
		}
	}
}
