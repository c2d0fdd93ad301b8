package routine

import "fmt"

// Protect runs f and returns its error, or its panic as one that says what panicked: code
// of the application must not end the process. It catches nothing of goroutines that f
// starts.
func Protect(what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s panicked: %v", what, v)
		}
	}()
	return f()
}
