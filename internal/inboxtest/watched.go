package inboxtest

import "context"

// Watched is a context that sends to DoneCalled whenever Done is called. DoneCalled has a buffer for as
// many calls as a test expects.
type Watched struct {
	context.Context
	DoneCalled chan struct{}
}

// Watch returns a Watched context.
func Watch(ctx context.Context) *Watched {
	return &Watched{Context: ctx, DoneCalled: make(chan struct{}, 8)}
}

// Done implements context.Context.
func (w *Watched) Done() <-chan struct{} {
	w.DoneCalled <- struct{}{}
	return w.Context.Done()
}
