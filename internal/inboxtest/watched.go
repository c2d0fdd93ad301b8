package inboxtest

import "context"

// Watched is a context that tells when somebody looks for its end. Looked has room
// for as many looks as there may be.
type Watched struct {
	context.Context
	Looked chan struct{}
}

// Watch watches a context.
func Watch(ctx context.Context) *Watched {
	return &Watched{Context: ctx, Looked: make(chan struct{}, 8)}
}

// Done implements context.Context.
func (w *Watched) Done() <-chan struct{} {
	w.Looked <- struct{}{}
	return w.Context.Done()
}
