package ops

import (
	"context"
	"errors"

	"github.com/gorm-inbox/inbox/cleanup"
)

// Cleanup deletes what the retentions allow, now, see Inbox.Cleanup. It has many
// transactions: its audit row is written before the first, and one with the
// counts behind the last. Needs a Live, which knows the retentions. It may take
// long; ctx ends it.
func (o *Ops) Cleanup(ctx context.Context, actor Actor) (cleanup.Deleted, error) {
	return cleanup.Deleted{}, errors.ErrUnsupported
}
