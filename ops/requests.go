package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// workerRequests are requests to living workers, for what the tables alone do not allow.
type workerRequests struct{ messageViews }

// Request is what an operator has requested of a living worker, and what came of it.
type Request struct {
	ID string
	// Kind is ActionCancel, ActionCancelRequest, ActionBackfill, ActionCleanup, ActionReplay or ActionReadAgain.
	Kind Action
	// Target is the handler key, or for a replay or reading again the channel, that the worker must have; the request to
	// cancel; or empty for a cleanup.
	Target      string
	Actor       Actor
	RequestedAt time.Time
	// TakenBy names the process that has taken it. It is empty, and TakenAt zero, until then.
	TakenBy string
	TakenAt time.Time
	// EndedAt is zero until it has ended, with a Result or a Problem. Result is JSON: a BulkResult, handler.Deleted,
	// Accepted or envelope.ReadAgainResult; of a cancel {"cancelled": true}, which says that the call's context is
	// cancelled, not that it has returned.
	EndedAt time.Time
	Result  string
	Problem string
}

// cancelArgument names the call to cancel, by the claim's version. Attempt and Version are 0 for a call without a
// status.
type cancelArgument struct {
	MessageID string `json:"message_id"`
	Namespace string `json:"namespace,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	Version   int64  `json:"version,omitempty"`
}

type backfillArgument struct {
	From   time.Time `json:"from"`
	To     time.Time `json:"to,omitzero"`
	DryRun bool      `json:"dry_run"`
	Max    int64     `json:"max"`
}

type replayArgument struct {
	Message MessageRef `json:"message"`
	Edit    Edit       `json:"edit"`
}

// CancelCall requests that the worker which runs a handler for a message cancels the call's context. The worker does
// that within about a heartbeat. A handler that returns an error then has failed, and is charged, with an error that
// begins "cancelled by operator"; one that returns nil has completed. One that ignores its context goes on, as after a
// timeout: see ReleaseClaim. Messages that share the call with this one, in a batch, are cancelled with it (contract
// 5.5, 11.1). It returns the ID of the request, see AwaitRequest. The request is for the status's present claim: once
// that has ended it fails, and cancels no later call.
//
// ErrNotClaimed means that no worker is processing the status, ErrStale that it has another version. A call of an
// Inline or Direct channel has no status: it can be cancelled once a worker reports that it does not return, otherwise
// the error is ErrNotFound.
func (o workerRequests) CancelCall(ctx context.Context, actor Actor, ref HandlerRef) (requestID string, err error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	argument := cancelArgument{MessageID: ref.Message.ID, Namespace: ref.Message.Namespace}
	if err = ref.check(); err == nil {
		err = o.running(ctx, ref, &argument)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", ActionCancel, err)
	}
	return o.requestWorker(ctx, actor, ActionCancel, ref.HandlerKey,
		fmt.Sprintf("handler %s of message %s", ref.HandlerKey, ref.Message.ID), argument,
		map[string]any{"attempt": argument.Attempt})
}

// running completes the argument with the attempt that a worker is making.
func (o workerRequests) running(ctx context.Context, ref HandlerRef, argument *cancelArgument) error {
	number, err := o.numberOf(ctx, o.pool(ctx), ref.Message)
	var rows []store.StatusRow
	if err == nil {
		rows, err = o.store.StatusesOf(ctx, o.pool(ctx), number, maxListed)
	}
	i := slices.IndexFunc(rows, func(s store.StatusRow) bool { return s.HandlerKey == ref.HandlerKey })
	switch {
	case err != nil && !errors.Is(err, ErrNotFound):
		return err
	case i < 0 && ref.Version != 0:
		return fmt.Errorf("%w: its status is gone", ErrStale)
	case i < 0:
		return o.checkReported(ctx, ref)
	}
	switch s := &rows[i]; {
	case ref.Version != 0 && int64(s.Version) != ref.Version:
		return fmt.Errorf("%w: it is at version %d, not %d", ErrStale, s.Version, ref.Version)
	case stateOf(&s.HandlerStatus) != StateProcessing:
		return fmt.Errorf("%w but %s", ErrNotClaimed, stateOf(&s.HandlerStatus))
	case s.WorkerID == nil:
		return fmt.Errorf("%w by a worker, but by a ProcessPending, which takes no requests", ErrNotClaimed)
	default:
		argument.Namespace, argument.Version = s.Namespace, int64(s.Version)
		argument.Attempt = s.ErrorCount + s.AbandonedCount + 1
		return nil
	}
}

// checkReported returns ErrNotFound unless a living worker reports that a call without a status does not return.
func (o workerRequests) checkReported(ctx context.Context, ref HandlerRef) error {
	workers, err := o.Workers(ctx)
	if err != nil {
		return err
	}
	for _, w := range workers {
		for _, r := range w.Reasons {
			if w.Alive && r.Code == health.LongRunning && r.HandlerKey == ref.HandlerKey &&
				slices.Contains(r.MessageIDs, ref.Message.ID) {
				return nil
			}
		}
	}
	return fmt.Errorf("message %q: %w: the handler has no status of it, and no worker reports that its call does not return",
		ref.Message.ID, ErrNotFound)
}

// RequestBackfill requests a Backfill of a living worker that has the handler. Of bulk only DryRun and Max count. It
// needs only the tables, and returns the ID of the request, see AwaitRequest, or ErrBadInput. Whether a worker has the
// handler, and an ordered one is paused, only a worker can say: its error is the request's Problem.
func (o workerRequests) RequestBackfill(
	ctx context.Context, actor Actor, handlerKey string, from, to time.Time, bulk Bulk,
) (requestID string, err error) {
	err = checkText("handler key", handlerKey, 1, columns.MaxHandlerKey)
	if err == nil && from.IsZero() {
		err = badInput("from", "it is required: the time since which messages were received")
	}
	if err == nil {
		err = checkAges(from, to)
	}
	if err == nil {
		_, err = bulk.checked()
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", ActionBackfill, err)
	}
	argument := backfillArgument{From: from.UTC(), To: to.UTC(), DryRun: bulk.DryRun, Max: bulk.Max}
	return o.requestWorker(ctx, actor, ActionBackfill, handlerKey, "handler "+handlerKey, argument, argument)
}

// RequestCleanup requests a Cleanup of a living worker. It needs only the tables, and returns the ID of the request,
// see AwaitRequest.
func (o workerRequests) RequestCleanup(ctx context.Context, actor Actor) (requestID string, err error) {
	return o.requestWorker(ctx, actor, ActionCleanup, "", "inbox", struct{}{}, nil)
}

// RequestReplay requests a Replay of a living worker that has the message's channel. The worker refuses it unless its
// application allows replays. It needs only the tables, and returns the ID of the request, see AwaitRequest, and that
// of the copy. ErrNotFound means that there is no such message, ErrAmbiguous that several have its ID.
func (o workerRequests) RequestReplay(ctx context.Context, actor Actor, ref MessageRef, edit Edit) (
	requestID, copyID string, err error,
) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	var message models.Message
	if err = ref.check(); err == nil {
		message, err = o.loadMessage(ctx, o.pool(ctx), ref)
	}
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", ActionReplay, err)
	}
	raw, err := o.rawMessage(ctx, message, false)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", ActionReplay, err)
	}
	edit.MessageID = cmp.Or(edit.MessageID, ref.CopyID())
	ref.Namespace = message.Namespace
	requestID, err = o.requestWorker(ctx, actor, ActionReplay, raw.Channel, "message "+ref.ID, replayArgument{ref, edit},
		map[string]any{"namespace": ref.Namespace, "copy_id": edit.MessageID})
	return requestID, edit.MessageID, err
}

// requestWorker stores a request, with an audit row that has the detail and the request's ID.
func (o workerRequests) requestWorker(ctx context.Context, actor Actor, kind Action, target, audited string,
	argument, detail any) (requestID string, err error) {
	now, err := o.Now(ctx) // another machine judges whether the request has expired
	if err != nil {
		return "", fmt.Errorf("%s: %w", kind, err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("%s: make an ID: %w", kind, err)
	}
	text, err := json.Marshal(argument)
	if err != nil {
		return "", fmt.Errorf("%s: its argument: %w", kind, err)
	}
	return id.String(), o.audited(ctx, actor, kind, audited, func(ctx context.Context, tx *gorm.DB) (any, error) {
		err := o.store.AddRequest(ctx, tx.Statement.ConnPool, models.Request{ID: id.String(), Kind: string(kind),
			Target: target, Argument: string(text), Actor: string(actor), RequestedAt: now})
		return requestedDetail{"requested", id.String(), detail}, err
	})
}

// requestedDetail is the audit's detail of a request.
type requestedDetail struct {
	Event   string `json:"event"`
	Request string `json:"request_id"`
	Detail  any    `json:"detail,omitempty"`
}

// Request returns a request to a worker, or ErrNotFound.
func (o workerRequests) Request(ctx context.Context, id string) (Request, error) {
	id, err := checkID("request ID", id)
	if err != nil {
		return Request{}, err
	}
	r, err := o.store.LoadRequest(ctx, o.pool(ctx), id)
	if err == nil && r == nil {
		err = ErrNotFound
	}
	if err != nil {
		return Request{}, fmt.Errorf("request %s: %w", id, err)
	}
	return Request{ID: r.ID, Kind: Action(r.Kind), Target: r.Target, Actor: Actor(r.Actor), RequestedAt: r.RequestedAt,
		TakenBy: r.TakenBy, TakenAt: orZero(r.TakenAt), EndedAt: orZero(r.EndedAt), Result: r.Result,
		Problem: o.redactor.Error(redact.Value{}, r.Problem)}, nil
}

// AwaitRequest waits until a request has ended, and returns it. The error is ErrRequestFailed with its Problem if it
// has failed. Once ctx ends, it is ErrNotYet and says why: no worker has taken the request, which expires an hour after
// it was made, or the worker that has is not done. A lost connection does not end the wait, unless the database is away
// for a minute.
func (o workerRequests) AwaitRequest(ctx context.Context, id string) (Request, error) {
	var last Request
	for {
		var r Request
		err := untilDatabaseAnswers(ctx, func() (err error) { r, err = o.Request(ctx, id); return err })
		switch {
		case err != nil && ctx.Err() == nil:
			return last, err
		case err == nil && r.Problem != "":
			return r, fmt.Errorf("request %s: %w: %s", id, ErrRequestFailed, r.Problem)
		case err == nil && !r.EndedAt.IsZero():
			return r, nil
		case err == nil:
			last = r
		}
		if routine.Sleep(ctx, awaitEvery) {
			continue
		}
		why := "no living worker that can do it has taken it; it expires after an hour"
		if last.TakenBy != "" {
			why = last.TakenBy + " has taken it and not ended it"
		}
		return last, fmt.Errorf("request %s: %w: %s", id, ErrNotYet, why)
	}
}

// CancelRequest ends a request early. Its process does that within about a heartbeat, or any of the inbox if none has
// taken it yet. What was done until then stays done, and is its Result. AwaitRequest of the cancelled request waits for
// that; its Problem then begins "cancelled by". ErrNotFound means that there is no such request, ErrStale that it has
// ended or expired.
func (o workerRequests) CancelRequest(ctx context.Context, actor Actor, id string) error {
	r, err := o.Request(ctx, id)
	var now time.Time
	if err == nil {
		now, err = o.Now(ctx)
	}
	switch {
	case err != nil:
	case !r.EndedAt.IsZero():
		err = fmt.Errorf("request %s: %w: it has ended", r.ID, ErrStale)
	case r.TakenBy == "" && !r.RequestedAt.After(now.Add(-requestsLast)):
		err = fmt.Errorf("request %s: %w: it has expired", r.ID, ErrStale)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", ActionCancelRequest, err)
	}
	_, err = o.requestWorker(ctx, actor, ActionCancelRequest, r.ID, "request "+r.ID, struct{}{}, nil)
	return err
}

// servedPage is how many requests are read at a time.
const servedPage = 100

// ServeRequests carries out requests of these kinds in the requesting operators' names, the earliest first, as far as
// this process can: it makes the call, has the handler, or has one of the channels. It takes a request before it
// carries it out, so at most once, and stores what came of it. By names this process, in 1 to 300 characters. A running
// Inbox calls this at each heartbeat. It needs a Live. Once ctx has ended, no further request begins. It may be called
// concurrently, in any processes.
func (o *Ops) ServeRequests(ctx context.Context, by string, channels []string, kinds ...Action) error {
	if o.opts.Live == nil {
		return fmt.Errorf("serve requests: %w", ErrNeedsApplication)
	}
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = string(kind)
	}
	now, err := o.Now(ctx)
	if err != nil {
		return fmt.Errorf("list requests: %w", err)
	}
	at, id := now.Add(-requestsLast), uuid.Nil.String()
	for {
		requests, err := o.store.OpenRequests(ctx, o.pool(ctx), names, at, id, servedPage)
		if err != nil {
			return fmt.Errorf("list requests: %w", err)
		}
		for _, r := range requests {
			if err := ctx.Err(); err != nil {
				return err
			}
			at, id = r.RequestedAt, r.ID
			serve, err := o.serving(ctx, r, now, channels)
			if err == nil && serve != nil { // otherwise another process may be able to
				err = o.serve(ctx, r, by, serve)
			}
			if err != nil {
				return fmt.Errorf("request %s to %s: %w", r.ID, r.Kind, err)
			}
		}
		if len(requests) < servedPage {
			return nil
		}
	}
}

// serving returns how this process carries a request out; nil if it cannot.
func (o *Ops) serving(ctx context.Context, r models.Request, now time.Time, channels []string,
) (serve func(context.Context) (result any, err error), err error) {
	switch kind := Action(r.Kind); {
	case kind == ActionCancel:
		return o.cancelling(r, now), nil
	case kind == ActionCancelRequest:
		return o.cancellingRequest(ctx, r, now)
	case kind == ActionCleanup:
		return func(ctx context.Context) (any, error) { return o.Cleanup(ctx, Actor(r.Actor)) }, nil
	case kind == ActionBackfill && o.has(r.Target):
		return func(ctx context.Context) (any, error) {
			var a backfillArgument
			if err := o.argument(ctx, r, &a); err != nil {
				return nil, err
			}
			return o.Backfill(ctx, Actor(r.Actor), r.Target, a.From, a.To, Bulk{DryRun: a.DryRun, Max: a.Max})
		}, nil
	case kind == ActionReplay && slices.Contains(channels, r.Target):
		return func(ctx context.Context) (any, error) {
			var a replayArgument
			if o.Can(ActionReplay) == nil { // otherwise it is refused without reading the payload
				if err := o.argument(ctx, r, &a); err != nil {
					return nil, err
				}
			}
			return o.Replay(ctx, Actor(r.Actor), a.Message, a.Edit)
		}, nil
	case kind == ActionReadAgain && slices.Contains(channels, r.Target):
		return func(ctx context.Context) (any, error) {
			var a envelope.ReadAgain
			if err := o.argument(ctx, r, &a); err != nil {
				return nil, err
			}
			return o.ReadAgain(ctx, Actor(r.Actor), a)
		}, nil
	}
	return nil, nil
}

// has reports whether this process declares a handler key.
func (o *Ops) has(handlerKey string) bool {
	_, err := o.opts.Live.Subscription(handlerKey)
	return err == nil
}

// argument reads a request's argument.
func (o *Ops) argument(ctx context.Context, r models.Request, into any) error {
	text := r.Argument
	if text == "" { // it is long
		var err error
		if text, err = o.store.RequestArgument(ctx, o.pool(ctx), r.ID); err != nil {
			return err
		}
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return badInput("argument", "%s", err)
	}
	return nil
}

// cancelling returns how to cancel a call; nil if this process does not make it. The same message may be handled again
// within the hour that a request lasts, even in an attempt of the same number. So the status must still have the
// version of the claim, and a call without a status must have begun before the request. That compares two durations,
// so it does not matter whose clock is wrong.
func (o *Ops) cancelling(r models.Request, now time.Time) func(context.Context) (result any, err error) {
	var a cancelArgument
	if json.Unmarshal([]byte(r.Argument), &a) != nil {
		return nil
	}
	ranFor, cancel := o.opts.Live.Running(r.Target, a.MessageID, a.Attempt)
	if cancel == nil || a.Version == 0 && ranFor < now.Sub(r.RequestedAt) {
		return nil
	}
	return func(ctx context.Context) (any, error) {
		if a.Version != 0 {
			ref := HandlerRef{Message: MessageRef{ID: a.MessageID, Namespace: a.Namespace}, HandlerKey: r.Target,
				Version: a.Version}
			if err := o.running(ctx, ref, new(cancelArgument)); err != nil {
				return nil, err
			}
		}
		cancel(r.Actor)
		return map[string]bool{"cancelled": true}, nil
	}
}

// cancellingRequest returns how to end another request; nil if another process carries that out. If none has taken it
// yet, this takes and ends it at once, so that none will.
func (o *Ops) cancellingRequest(ctx context.Context, r models.Request, now time.Time,
) (serve func(context.Context) (result any, err error), err error) {
	why := "cancelled by operator " + r.Actor
	cancelled := func(context.Context) (any, error) { return map[string]bool{"cancelled": true}, nil }
	if end, here := o.underWay.Load(r.Target); here {
		return func(ctx context.Context) (any, error) {
			end.(context.CancelCauseFunc)(errors.New(why))
			return cancelled(ctx)
		}, nil
	}
	target, err := o.store.LoadRequest(ctx, o.pool(ctx), r.Target)
	switch {
	case err != nil:
		return nil, err
	case target == nil || target.EndedAt != nil:
		return func(context.Context) (any, error) { return nil, fmt.Errorf("%w: it has ended", ErrStale) }, nil
	case target.TakenAt != nil:
		return nil, nil
	}
	ctx, done := o.bounded(ctx)
	defer done()
	err = o.act(ctx, func(ctx context.Context, tx *gorm.DB) error {
		pool := tx.Statement.ConnPool
		taken, err := o.store.TakeRequest(ctx, pool, r.Target, "no process", now.Add(-requestsLast), now)
		if err != nil || !taken {
			return err // if a process has taken it meanwhile, the next heartbeat finds that
		}
		serve = cancelled
		return o.store.EndRequest(ctx, pool, r.Target, "", why, now)
	})
	if err != nil {
		return nil, err
	}
	return serve, nil
}

// serve takes a request, unless another process has, carries it out and stores the result. A stop ends neither of the
// two writes: a request that this process has taken is carried out by no other.
func (o *Ops) serve(ctx context.Context, r models.Request, by string, do func(context.Context) (any, error)) error {
	writing, cancel := o.bounded(context.WithoutCancel(ctx))
	defer cancel()
	now, err := o.Now(writing) // the request may have expired while an earlier one was carried out
	if err != nil {
		return err
	}
	var taken bool
	err = o.act(writing, func(ctx context.Context, tx *gorm.DB) (err error) {
		taken, err = o.store.TakeRequest(ctx, tx.Statement.ConnPool, r.ID, by, now.Add(-requestsLast), now)
		return err
	})
	if err != nil || !taken {
		return err
	}
	working, end := context.WithCancelCause(ctx)
	defer end(nil)
	o.underWay.Store(r.ID, end)
	defer o.underWay.Delete(r.ID)
	var result any
	text, problem := []byte(nil), ""
	if err = routine.Protect(r.Kind, func() (err error) { result, err = do(working); return err }); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%s stopped meanwhile: %w", by, err)
		} else if working.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(working), err)
		}
		problem = store.SanitizeError(o.redactor.Error(redact.Value{}, err.Error()))
	}
	if result != nil {
		if text, err = json.Marshal(result); err != nil {
			return fmt.Errorf("its result: %w", err)
		}
	}
	return untilDatabaseAnswers(ctx, func() error {
		ctx, cancel := o.bounded(context.WithoutCancel(ctx))
		defer cancel()
		now, err := o.Now(ctx)
		if err != nil {
			return err
		}
		return o.act(ctx, func(ctx context.Context, tx *gorm.DB) error {
			return o.store.EndRequest(ctx, tx.Statement.ConnPool, r.ID, string(text), problem, now)
		})
	})
}
