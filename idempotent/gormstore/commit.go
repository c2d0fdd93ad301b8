package gormstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/store"
)

// afterCommitError returns nil if a failed commit has committed after all. If the database responded with an error, it
// did not commit. If the connection was lost the outcome is unknown; the marker shows it, because it is part of the
// transaction. The marker may be another run's that waited for ours to be rolled back: the message is processed then,
// too. If there is no marker, the server may still be working on the commit.
func (s *Store) afterCommitError(ctx context.Context, w work, commitErr error) error {
	err := fmt.Errorf("commit: %w", commitErr)
	if !store.OutcomeUnknown(commitErr) {
		return naming(w.Key, err)
	}
	if w.unmarked {
		return naming(w.Key, fmt.Errorf("%w: it has no marker: %w", idempotent.ErrLost, err))
	}
	found, readErr := s.readMarker(ctx, w.Key)
	switch {
	case readErr != nil:
		return naming(w.Key, fmt.Errorf("%w: %w", idempotent.ErrLost, errors.Join(err, readErr)))
	case !found:
		return naming(w.Key, fmt.Errorf("%w: its marker is not there (yet): %w", idempotent.ErrLost, err))
	}
	return nil
}

// readMarker is Processed, with transient errors retried until StatementTimeout is over.
func (s *Store) readMarker(ctx context.Context, key idempotent.Key) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.StatementTimeout)
	defer cancel()
	for retry := newBackoff(); ; {
		found, err := s.markers.HasMarker(ctx, key.MessageID, key.HandlerKey, key.Namespace)
		if err == nil || !store.IsTransient(err) || !retry.Wait(ctx) {
			return found, err
		}
	}
}
