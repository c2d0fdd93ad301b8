package store

import "context"

// Notify has nobody to tell: newSQLite is not made with Announcing.
func (s *sqlite) Notify(context.Context, ...string) error { return nil }

func (s *sqlite) Listen(context.Context) (*Listener, error) { return nil, ErrCannotListen }

func (s *sqlite) CanListen(context.Context) error { return ErrCannotListen }
