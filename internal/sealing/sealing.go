// Package sealing applies an inbox's Sealer (contract 15). All code that seals or opens contents uses it.
package sealing

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/models"
)

// maxSealed bounds a sealed content: a Sealer that grows contents without end must not fill the database.
const maxSealed = 64 << 20

// Sealer calls a handler.Sealer; the zero Sealer has none. It is safe for concurrent use.
type Sealer struct {
	hook    handler.Sealer
	timeout time.Duration
}

// New returns a Sealer that calls hook, which may be nil, with a timeout for each call.
func New(hook handler.Sealer, timeout time.Duration) Sealer { return Sealer{hook, timeout} }

// Seals reports whether there is a hook.
func (s Sealer) Seals() bool { return s.hook != nil }

// MissingError means that a content is sealed and this process cannot open it.
type MissingError struct{ KeyID string }

// Error names the key and what to do.
func (e *MissingError) Error() string {
	return fmt.Sprintf("content is sealed with key %q: set the option Sealer in this process", e.KeyID)
}

// IdentityOf returns the identity of a message that a channel stored.
func IdentityOf(m *models.Message, channel string) handler.Identity {
	return handler.Identity{Channel: channel, ID: m.ID, Type: m.Type, Source: m.Source}
}

// Seal returns what to store for a content, and its seal, which is zero if the content is stored as it is. The error is
// a *handler.PoisonError if the content can never be sealed.
func (s Sealer) Seal(ctx context.Context, of handler.Identity, content []byte) ([]byte, properties.Seal, error) {
	if s.hook == nil {
		return content, properties.Seal{}, nil
	}
	var sealed []byte
	var keyID string
	err := s.call(ctx, "Seal", func(ctx context.Context) (err error) {
		sealed, keyID, err = s.hook.Seal(ctx, of, content)
		return err
	})
	switch {
	case err != nil:
		return nil, properties.Seal{}, fmt.Errorf("seal content: %w", err)
	case keyID == "" && sealed == nil:
		return content, properties.Seal{}, nil
	case keyID == "":
		return nil, properties.Seal{}, fmt.Errorf("the Sealer returned %d bytes and no key ID", len(sealed))
	case len(sealed) > maxSealed:
		return nil, properties.Seal{}, handler.Poison(fmt.Errorf("sealed with key %q, its content of %d bytes has %d: at "+
			"most %d can be stored", keyID, len(content), len(sealed), maxSealed))
	}
	if err := store.CheckText(keyID, 200); err != nil {
		return nil, properties.Seal{}, fmt.Errorf("the Sealer's key ID: %w", err)
	}
	hash := sha256.Sum256(content)
	return base.Filled(sealed), properties.Seal{Key: keyID, SHA256: hash[:]}, nil
}

// Open returns the plain content of what is stored. It returns a *MissingError if that is sealed and there is no hook.
func (s Sealer) Open(ctx context.Context, of handler.Identity, seal properties.Seal, stored []byte) ([]byte, error) {
	if seal.Key == "" {
		return stored, nil
	}
	if s.hook == nil {
		return nil, &MissingError{seal.Key}
	}
	var content []byte
	err := s.call(ctx, "Open", func(ctx context.Context) (err error) {
		content, err = s.hook.Open(ctx, of, seal.Key, stored)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open content sealed with key %q: %w", seal.Key, err)
	}
	return base.Filled(content), nil
}

func (s Sealer) call(ctx context.Context, method string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return routine.Protect("the Sealer's "+method, func() error { return do(ctx) })
}
