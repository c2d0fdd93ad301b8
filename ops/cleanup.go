package ops

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/cleanup"
)

// Cleanup deletes what the retentions allow, now, see Inbox.Cleanup. It has many
// transactions: its audit row is written before the first, and one with the
// counts behind the last. Needs a Live, which knows the retentions, or WithCleanup.
// It may take long; ctx ends it.
func (o *Ops) Cleanup(ctx context.Context, actor Actor) (cleanup.Deleted, error) {
	if err := o.Can(ActionCleanup); err != nil {
		return cleanup.Deleted{}, err
	}
	note := func(ctx context.Context, detail any) error {
		return o.audited(ctx, actor, ActionCleanup, "inbox", func(context.Context, *gorm.DB) (any, error) { return detail, nil })
	}
	if err := note(ctx, map[string]string{"event": "begun"}); err != nil {
		return cleanup.Deleted{}, err
	}
	deleted, err := o.cleanup(ctx)
	end := map[string]any{"event": "ended", "deleted": deleted}
	if err != nil {
		end["error"] = err.Error()
		err = fmt.Errorf("%s: %w", ActionCleanup, err)
	}
	// Also if ctx has ended: what was deleted is deleted.
	return deleted, errors.Join(err, note(context.WithoutCancel(ctx), end))
}
