package attempt

import (
	"fmt"
	"runtime"
	"strings"
)

// PanicError is the failure of an attempt during which the handler panicked, or other code that ran for it: a driver, a
// plugin, the application's clock. Its text, with the stack, becomes the last error.
type PanicError struct {
	Value any
	// Stack begins where the panic happened. It ends before the library's own frames, unless there are no others.
	Stack []byte
}

// Recovered returns the failure for a value that recover returned. Only a deferred function may call it, while the
// stack of the panic still exists.
func Recovered(value any) *PanicError { return &PanicError{Value: value, Stack: panicStack()} }

// Error returns the value and the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("handler panicked: %v\n\n%s", e.Value, e.Stack)
}

// Trace returns the stack, for callers that keep it apart from the text.
func (e *PanicError) Trace() []byte { return e.Stack }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

const (
	maxFrames = 64
	// callers is the prefix of the functions that call handlers. Frames from there on say nothing about the
	// application.
	callers = "github.com/gorm-inbox/inbox/handler."
)

// panicStack returns the frames of the current panic that belong to the application, or all frames below the panic if
// none does. The last error keeps 2,000 characters, and failure groups use the first frame. Frames of the runtime and
// of this library would push the application's frames out of both.
func panicStack() []byte {
	pcs := make([]uintptr, maxFrames)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	var all []runtime.Frame
	for {
		frame, more := frames.Next()
		all = append(all, frame)
		if !more {
			break
		}
	}
	for i, f := range all {
		if f.Function == "runtime.gopanic" {
			all = all[i+1:]
			break
		}
	}
	for len(all) > 1 && strings.HasPrefix(all[0].Function, "runtime.") {
		all = all[1:]
	}
	end := len(all)
	for i, f := range all {
		if strings.HasPrefix(f.Function, callers) && i > 0 {
			end = i
			break
		}
	}
	var out strings.Builder
	for _, f := range all[:end] {
		fmt.Fprintf(&out, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
	}
	return []byte(out.String())
}
