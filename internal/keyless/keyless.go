// Package keyless tells a wrapper around an idempotent handler that it is called
// for a message without ID, which nothing remembers (contract 8.3).
package keyless

import "context"

type key struct{}

// With returns ctx saying whether its message has no ID.
func With(ctx context.Context, keyless bool) context.Context {
	if keyless == Is(ctx) {
		return ctx
	}
	return context.WithValue(ctx, key{}, keyless)
}

// Is reports whether the message has none.
func Is(ctx context.Context) bool {
	keyless, _ := ctx.Value(key{}).(bool)
	return keyless
}
