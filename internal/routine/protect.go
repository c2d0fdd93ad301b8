package routine

import "fmt"

// Protect runs f and returns its error. It turns a panic into an error that names what panicked,
// because application code must not end the process. It does not catch panics of goroutines that f
// starts.
func Protect(what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s panicked: %v", what, v)
		}
	}()
	return f()
}
