package ops

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/redact"
)

// Cleanup deletes now what the retentions allow, see Inbox.Cleanup. It runs many transactions. One audit row is written
// before the first and one, with the counts, after the last. It needs a Live, which knows the retentions, or the option
// Cleanup. It may take long; ctx ends it.
func (o *Ops) Cleanup(ctx context.Context, actor Actor) (handler.Deleted, error) {
	if err := o.Can(ActionCleanup); err != nil {
		return handler.Deleted{}, err
	}
	if err := o.note(ctx, actor, ActionCleanup, "inbox", map[string]string{"event": "begun"}); err != nil {
		return handler.Deleted{}, err
	}
	deleted, err := o.opts.Cleanup(ctx)
	end := map[string]any{"event": "ended", "deleted": deleted}
	if err != nil {
		end["error"] = o.redactor.Error(redact.Value{}, err.Error()) // an archive function may quote data
		err = fmt.Errorf("%s: %w", ActionCleanup, err)
	}
	return deleted, errors.Join(err, o.noteAnyway(ctx, actor, ActionCleanup, "inbox", end))
}
