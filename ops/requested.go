package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/redact"
)

// RequestReAccept requests that a running process which declares the message's channel accepts it again, as ReAccept
// does. It needs only the tables. The request is stored in the row, and a later one replaces it. One process takes it
// within about a heartbeat; if none has after an hour, it expires (contract 11.1).
//
// ErrNotFound means that there is no such message. What became of the request is in the audit.
func (o *Ops) RequestReAccept(ctx context.Context, actor Actor, id string) error {
	id, err := checkID("rejected message ID", id)
	if err != nil {
		return fmt.Errorf("%s: %w", ActionReAccept, err)
	}
	return o.requestReAccept(ctx, actor, id, nil)
}

// RequestReAcceptMatching requests the same for every rejected message that matches the filter. Filter, bulk and result
// are those of ReAcceptMatching; Done counts the requests.
func (o *Ops) RequestReAcceptMatching(
	ctx context.Context, actor Actor, filter RejectedFilter, bulk Bulk,
) (BulkResult, error) {
	return o.reAcceptMatching(ctx, actor, filter, bulk, true)
}

func (o *Ops) requestReAccept(ctx context.Context, actor Actor, id string, filter *RejectedFilter) error {
	target := "rejected message " + id
	now, err := o.store.Clock(ctx, o.opts.Clock.Now()) // another machine judges whether the request has expired
	if err != nil {
		return fmt.Errorf("%s %s: %w", ActionReAccept, target, err)
	}
	return o.audited(ctx, actor, ActionReAccept, target,
		func(ctx context.Context, tx *gorm.DB) (any, error) {
			requested, err := o.exec(ctx, tx.Statement.ConnPool, requestReAccept, id, string(actor), o.stamp(now))
			if err == nil && requested == 0 {
				err = ErrNotFound
			}
			return reAcceptDetail{"requested", filter}, err
		})
}

// reAcceptRequest is a request that no process has taken.
type reAcceptRequest struct {
	id, channel, actor string
	at                 time.Time
}

// requestedTimeout bounds one request, whatever its handlers wait for.
const requestedTimeout = 5 * time.Minute

// ReAcceptRequested accepts the requested rejected messages of these channels again, the earliest
// request first. It takes a request before it carries it out, so at most once; the audit has the
// result. A running Inbox calls this at each heartbeat. It needs a Live. Once ctx has ended, no further
// request begins.
func (o *Ops) ReAcceptRequested(ctx context.Context, channels []string) error {
	now, err := o.store.Clock(ctx, o.opts.Clock.Now())
	if err != nil {
		return fmt.Errorf("list requests to accept again: %w", err)
	}
	at, id := now.Add(-requestsLast), uuid.Nil.String()
	for {
		page, cancel := o.bounded(ctx)
		requests, err := readRows(page, o, requestedReAccepts, func(rows *sql.Rows, r *reAcceptRequest) error {
			var at store.Stamp
			err := rows.Scan(&r.id, &r.channel, &r.actor, &at)
			r.at = at.Time
			return err
		}, o.stamp(at), id, MaxLimit)
		cancel()
		if err != nil {
			return fmt.Errorf("list requests to accept again: %w", err)
		}
		for _, r := range requests {
			if at, id = r.at, r.id; !slices.Contains(channels, r.channel) {
				continue // of another program
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := o.carryOut(context.WithoutCancel(ctx), r); err != nil {
				return fmt.Errorf("accept again as requested: rejected message %s: %w", r.id, err)
			}
		}
		if len(requests) < MaxLimit {
			return nil
		}
	}
}

// carryOut takes a request, unless another process has, and accepts the message again.
func (o *Ops) carryOut(ctx context.Context, r reAcceptRequest) error {
	ctx, cancel := context.WithTimeout(ctx, requestedTimeout)
	defer cancel()
	var taken int64
	err := o.act(ctx, func(ctx context.Context, tx *gorm.DB) (err error) {
		taken, err = o.exec(ctx, tx.Statement.ConnPool, takeReAccept, r.id, o.stamp(r.at))
		return err
	})
	if err != nil || taken == 0 {
		return err
	}
	_, err = o.ReAccept(ctx, Actor(r.actor), r.id)
	if err == nil || errors.As(err, new(*handler.StillBadError)) {
		return nil // the audit has it
	}
	return o.noteAnyway(ctx, Actor(r.actor), ActionReAccept, "rejected message "+r.id,
		notAcceptedDetail{"not accepted", o.redactor.Error(redact.Value{MessageID: r.id, Channel: r.channel}, err.Error())})
}

// notAcceptedDetail is the audit's detail of a request that changed nothing.
type notAcceptedDetail struct {
	Event string `json:"event"`
	Error string `json:"error"`
}

const (
	// requestReAccept uses the primary key, and so does takeReAccept, or rejected_messages_requested.
	requestReAccept = `UPDATE {rejected} SET requested_by = $2, requested_at = $3 WHERE id = $1`
	takeReAccept    = `UPDATE {rejected} SET requested_by = NULL, requested_at = NULL WHERE id = $1 AND requested_at = $2`

	// requestedReAccepts uses rejected_messages_requested.
	requestedReAccepts = `
SELECT CAST(id AS text), channel, requested_by, requested_at FROM {rejected}
WHERE requested_at IS NOT NULL AND (requested_at, id) > ($1, $2) ORDER BY requested_at, id LIMIT $3`
)
