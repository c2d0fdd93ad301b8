package ops

import (
	"context"
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
// ErrNotFound means that there is no such message. The audit records the request's result.
func (o rejections) RequestReAccept(ctx context.Context, actor Actor, id string) error {
	id, err := checkID("rejected message ID", id)
	if err != nil {
		return fmt.Errorf("%s: %w", ActionReAccept, err)
	}
	return o.requestReAccept(ctx, actor, id, nil)
}

// RequestReAcceptMatching requests the same for every rejected message that matches the filter. Filter, bulk and result
// are as in ReAcceptMatching; Done counts the requests.
func (o rejections) RequestReAcceptMatching(
	ctx context.Context, actor Actor, filter RejectedFilter, bulk Bulk,
) (BulkResult, error) {
	return o.reAcceptMatching(ctx, actor, filter, bulk, true)
}

func (o rejections) requestReAccept(ctx context.Context, actor Actor, id string, filter *RejectedFilter) error {
	target := "rejected message " + id
	now, err := o.store.Clock(ctx, o.opts.Clock.Now()) // another machine judges whether the request has expired
	if err != nil {
		return fmt.Errorf("%s %s: %w", ActionReAccept, target, err)
	}
	return o.audited(ctx, actor, ActionReAccept, target, func(ctx context.Context, tx *gorm.DB) (any, error) {
		requested, err := o.store.RequestReAccept(ctx, tx.Statement.ConnPool, id, string(actor), now)
		if err == nil && !requested {
			err = ErrNotFound
		}
		return reAcceptDetail{"requested", filter}, err
	})
}

// requestedTimeout bounds one request, including its handlers' waits.
const requestedTimeout = 5 * time.Minute

// ReAcceptRequested accepts the requested rejected messages of these channels again, the earliest request first. It
// takes a request before it carries it out, so at most once; the audit has the result. A running Inbox calls this at
// each heartbeat. It needs a Live. Once ctx has ended, no further request begins.
func (o rejections) ReAcceptRequested(ctx context.Context, channels []string) error {
	now, err := o.store.Clock(ctx, o.opts.Clock.Now())
	if err != nil {
		return fmt.Errorf("list requests to accept again: %w", err)
	}
	at, id := now.Add(-requestsLast), uuid.Nil.String()
	for {
		page, cancel := o.bounded(ctx)
		requests, err := o.store.RequestedReAccepts(page, o.pool(page), at, id, MaxLimit)
		cancel()
		if err != nil {
			return fmt.Errorf("list requests to accept again: %w", err)
		}
		for _, r := range requests {
			if at, id = r.RequestedAt, r.ID; !slices.Contains(channels, r.Channel) {
				continue // of another program
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := o.carryOut(context.WithoutCancel(ctx), r); err != nil {
				return fmt.Errorf("accept again as requested: rejected message %s: %w", r.ID, err)
			}
		}
		if len(requests) < MaxLimit {
			return nil
		}
	}
}

// carryOut takes a request, unless another process has, and accepts the message again.
func (o rejections) carryOut(ctx context.Context, r store.ReAcceptRequest) error {
	ctx, cancel := context.WithTimeout(ctx, requestedTimeout)
	defer cancel()
	var taken bool
	err := o.act(ctx, func(ctx context.Context, tx *gorm.DB) (err error) {
		taken, err = o.store.TakeReAccept(ctx, tx.Statement.ConnPool, r.ID, r.RequestedAt)
		return err
	})
	if err != nil || !taken {
		return err
	}
	_, err = o.ReAccept(ctx, Actor(r.Actor), r.ID)
	if err == nil || errors.As(err, new(*handler.StillBadError)) {
		return nil // the audit has it
	}
	return o.noteAnyway(ctx, Actor(r.Actor), ActionReAccept, "rejected message "+r.ID,
		notAcceptedDetail{"not accepted", o.redactor.Error(redact.Value{MessageID: r.ID, Channel: r.Channel}, err.Error())})
}

// notAcceptedDetail is the audit's detail of a request that changed nothing.
type notAcceptedDetail struct {
	Event string `json:"event"`
	Error string `json:"error"`
}
