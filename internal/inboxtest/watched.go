package inboxtest

import "context"

// Watched is a context that sends to Looked whenever Done is called. Looked has a buffer for as
// many calls as a test expects.
type Watched struct {
	context.Context
	Looked chan struct{}
}

// Watch returns a Watched context.
func Watch(ctx context.Context) *Watched {
	return &Watched{Context: ctx, Looked: make(chan struct{}, 8)}
}

// Done implements context.Context.
func (w *Watched) Done() <-chan struct{} {
	w.Looked <- struct{}{}
	return w.Context.Done()
}
