// Package sealing is the code of docs/sealing.md.
package sealing

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"fmt"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
)

func sealed(sealer handler.Sealer) inbox.Option {
	//page:begin option
	return inbox.Configure(func(o *inbox.Options) { o.Sealer = sealer })
	//page:end
}

//page:begin keys

// Keys encrypts with AES-GCM. It seals with the newest key and opens with any.
type Keys struct {
	newest string
	all    map[string]cipher.AEAD
}

// NewKeys takes keys of 16, 24 or 32 bytes by their IDs.
func NewKeys(newest string, keys map[string][]byte) (*Keys, error) {
	k := &Keys{newest: newest, all: map[string]cipher.AEAD{}}
	for id, key := range keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", id, err)
		}
		if k.all[id], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, fmt.Errorf("key %q: %w", id, err)
		}
	}
	if k.all[newest] == nil {
		return nil, fmt.Errorf("no key %q", newest)
	}
	return k, nil
}

// Seal implements handler.Sealer.
func (k *Keys) Seal(_ context.Context, of handler.Identity, content []byte) ([]byte, string, error) {
	return k.all[k.newest].Seal(nil, nil, content, bound(of)), k.newest, nil
}

// Open implements handler.Sealer. A key that is not there may be deployed later, so the message is tried again. Bytes
// that are not authentic will never be.
func (k *Keys) Open(_ context.Context, of handler.Identity, keyID string, sealed []byte) ([]byte, error) {
	aead := k.all[keyID]
	if aead == nil {
		return nil, fmt.Errorf("no key %q", keyID)
	}
	content, err := aead.Open(nil, nil, sealed, bound(of))
	if err != nil {
		return nil, handler.Poison(err)
	}
	return content, nil
}

// bound is what is authenticated with a content: one that is moved to another message cannot be opened.
func bound(of handler.Identity) []byte {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // cannot happen: it has only strings
	}
	return text
}

//page:end
