package sqlite

import (
	"context"

	"github.com/gorm-inbox/inbox/internal/store"
)

// Notify has nobody to tell: New is not made with Announcing.
func (s *Store) Notify(context.Context, ...string) error { return nil }

func (s *Store) Listen(context.Context) (store.Listener, error) { return nil, store.ErrCannotListen }

func (s *Store) CanListen(context.Context) error { return store.ErrCannotListen }
