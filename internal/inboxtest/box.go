package inboxtest

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
)

// Box is a Sealer for tests. What it seals begins with the identity, which Open checks, and has each bit of the content
// inverted. It seals with the key of that name.
type Box struct {
	mu       sync.Mutex
	key      string
	failSeal func(of handler.Identity) error
	failOpen func(of handler.Identity, keyID string) error
	opened   []handler.Identity
}

// NewBox returns a Box that seals with a key.
func NewBox(key string) *Box { return &Box{key: key} }

// Option sets the Sealer.
func (b *Box) Option() inbox.Option { return inbox.Configure(func(o *inbox.Options) { o.Sealer = b }) }

// Use makes Seal use another key; the empty one leaves contents as they are.
func (b *Box) Use(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.key = key
}

// Fail sets what decides the errors of calls, which may also panic; nil lets them succeed.
func (b *Box) Fail(seal func(of handler.Identity) error, open func(of handler.Identity, keyID string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failSeal, b.failOpen = seal, open
}

// Opened returns the identities of what was opened.
func (b *Box) Opened() []handler.Identity {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened
}

// Seal implements handler.Sealer.
func (b *Box) Seal(ctx context.Context, of handler.Identity, content []byte) ([]byte, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ends := ctx.Deadline(); !ends {
		return nil, "", fmt.Errorf("seal %v: no deadline", of)
	}
	if b.failSeal != nil {
		if err := b.failSeal(of); err != nil {
			return nil, "", err
		}
	}
	if b.key == "" {
		return nil, "", nil
	}
	return append(prefix(of), inverted(content)...), b.key, nil
}

// Open implements handler.Sealer.
func (b *Box) Open(ctx context.Context, of handler.Identity, keyID string, sealed []byte) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ends := ctx.Deadline(); !ends {
		return nil, fmt.Errorf("open %v: no deadline", of)
	}
	if b.failOpen != nil {
		if err := b.failOpen(of, keyID); err != nil {
			return nil, err
		}
	}
	rest, ours := bytes.CutPrefix(sealed, prefix(of))
	if !ours {
		return nil, handler.Poison(fmt.Errorf("sealed for another than %v", of))
	}
	b.opened = append(b.opened, of)
	return inverted(rest), nil
}

func prefix(of handler.Identity) []byte {
	return fmt.Appendf(nil, "%q|", []string{of.Channel, of.ID, of.Type, of.Source})
}

func inverted(b []byte) []byte {
	out := make([]byte, len(b))
	for i, each := range b {
		out[i] = ^each
	}
	return out
}
