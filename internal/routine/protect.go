package routine

import (
	"fmt"
	"path"
	"runtime"
	"strings"

	"github.com/gorm-inbox/inbox/internal/brief"
)

// Protect runs f and returns its error. It turns a panic into an error of one line that names what panicked and where,
// because no code that we call may end the process. It does not catch panics of goroutines that f starts.
func Protect(what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s panicked: %s in %s", what, brief.Name(fmt.Sprint(v)), panickedIn())
		}
	}()
	return f()
}

// maxFrames is the number of functions that an error of Protect names.
const maxFrames = 8

// panickedIn returns the functions between Protect and the panic that is being recovered, the innermost first.
func panickedIn() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs[:])])
	var places []string
	panicking := false
	for len(places) < maxFrames {
		frame, more := frames.Next()
		switch {
		case strings.HasPrefix(frame.Function, "runtime."):
			panicking = panicking || frame.Function == "runtime.gopanic"
		case panicking && strings.HasSuffix(frame.Function, "/routine.Protect"):
			more = false
		case panicking:
			places = append(places, fmt.Sprintf("%s (%s:%d)", path.Base(frame.Function), path.Base(frame.File), frame.Line))
		}
		if !more {
			break
		}
	}
	return strings.Join(places, " < ")
}

// Go runs f on a new goroutine and returns a channel that is closed when f has returned.
func Go(f func()) (done <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return ended
}
