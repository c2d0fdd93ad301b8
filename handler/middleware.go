package handler

import "context"

// Middleware runs around a handler's calls: logging, tracing, tenancy, limits. It calls next at most once, with ctx or
// a context derived from it, and returns next's error or one of its own. If it returns nil without calling next, the
// messages are completed unhandled. For a batch handler it runs once per call, and next may return a *BatchError. It
// runs inside the attempt: its time counts towards the timeout, and its panic is the attempt's failure. It must be safe
// for concurrent use. (Contract 5.13.)
type Middleware func(ctx context.Context, call Call, next func(context.Context) error) error

// Call describes the call that a middleware runs around.
type Call struct {
	// HandlerKey is the handler's primary key.
	HandlerKey string
	Kind       Kind
	// Messages are the messages of the call: one, unless it is a batch handler's. Do not change them.
	Messages []Metadata
}

// Use runs middleware around this handler, the first outermost, inside the inbox's middleware. Do not use it for
// effects that must happen exactly once: it runs at every attempt.
func Use(middleware ...Middleware) Option {
	return func(s *settings) { s.middleware = append(s.middleware, middleware...) }
}

// wrap returns run with the chains around it; the first middleware of the first chain is outermost.
func wrap(run func(context.Context) error, call Call, chains ...[]Middleware) func(context.Context) error {
	for c := len(chains) - 1; c >= 0; c-- {
		for i := len(chains[c]) - 1; i >= 0; i-- {
			around, next := chains[c][i], run
			run = func(ctx context.Context) error { return around(ctx, call, next) }
		}
	}
	return run
}
