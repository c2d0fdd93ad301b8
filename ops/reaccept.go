package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/fingerprint"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/redact"
)

// ReasonCount is why a number of rejected messages stay rejected. Reasons that differ only in numbers, IDs and quoted
// text are counted together.
type ReasonCount struct {
	Reason string // redacted, without the varying parts
	N      int64
}

// ReAcceptMatching accepts every rejected message that matches the filter again, the earliest first, as ReAccept does:
// each in its own transaction, with its own audit row. One more audit row records the end. The filter must not be
// empty: to take all, name the channels. Without a To it ends now. Each message is taken once: one that is still bad
// stays with its new reason, one whose accept times out, or loses its connection three times, is skipped, and the next
// one follows. While the database is away the action waits, each time for a minute at most. The end of ctx stops the
// action after the current message, or rolls that back. The result counts the done messages, also with an error.
//
// Do a DryRun first, have the operator confirm its count, and pass it as Max. A dry run needs only the tables; the
// action needs a Live (contract 7.4, 11.1).
func (o rejections) ReAcceptMatching(ctx context.Context, actor Actor, filter RejectedFilter, bulk Bulk) (
	BulkResult, error,
) {
	return o.reAcceptMatching(ctx, actor, filter, bulk, false)
}

// reAcceptMatching accepts them again, or only requests it.
func (o rejections) reAcceptMatching(
	ctx context.Context, actor Actor, filter RejectedFilter, bulk Bulk, request bool,
) (BulkResult, error) {
	var result BulkResult
	fail := func(err error) (BulkResult, error) {
		return result, fmt.Errorf("%s matching rejected messages: %w", ActionReAccept, err)
	}
	if !bulk.DryRun && !request {
		if err := o.Can(ActionReAccept); err != nil {
			return result, err
		}
	}
	if err := actor.check(); err != nil {
		return fail(err)
	}
	if filter == (RejectedFilter{}) {
		return fail(badInput("filter", "it takes every rejected message: name the channel"))
	}
	if filter.To.IsZero() { // otherwise newly rejected messages could keep it running without an end
		now, err := o.Now(ctx)
		if err != nil {
			return fail(err)
		}
		filter.To = now.Add(time.Microsecond)
	}
	s, err := o.searchRejected(filter)
	if err != nil {
		return fail(err)
	}
	filter.Reason = o.redactor.Error(redact.Value{}, filter.Reason) // for the audit
	count := func(ctx context.Context) (Count, error) {
		found, err := s.find(ctx, s.start(), lookLimit)
		return Count{N: int64(len(found.items)), Capped: found.next != nil}, err
	}
	run := func(ctx context.Context, bulk Bulk) (BulkResult, error) {
		r := &reAccepting{rejections: o, actor: actor, filter: filter, request: request, reasons: map[string]int64{}}
		err := r.all(ctx, s, bulk)
		r.result.Reasons = r.mostFrequent()
		return r.result, err
	}
	if result, err = o.inChunks(ctx, actor, ActionReAccept, allRejected, filter, bulk, count, run); err != nil {
		return fail(err)
	}
	return result, nil
}

// allRejected is the audit's target of an action on all matching rejected messages.
const allRejected = "matching rejected messages"

// start returns a place before the earliest message.
func (s *rejectedSearch) start() place {
	return place{ListPlace: store.ListPlace{At: store.ListTime(s.oldest), ID: uuid.Nil.String()}}
}

// find returns up to limit messages after a place, the earliest first.
func (s *rejectedSearch) find(ctx context.Context, at place, limit int) (walked[store.RejectedHit], error) {
	ctx, cancel := s.of.bounded(ctx)
	defer cancel()
	return walk(ctx, at, limit, s.judges(), s.reading(true), placeOfRejected, s.takes)
}

// reAccepting is one running ReAcceptMatching.
type reAccepting struct {
	rejections
	actor   Actor
	filter  RejectedFilter
	request bool
	result  BulkResult
	reasons map[string]int64
}

func (r *reAccepting) all(ctx context.Context, s *rejectedSearch, bulk Bulk) error {
	for at := s.start(); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		next, enough := bulk.next(r.result.Done + r.result.StillBad + r.result.Skipped)
		var found walked[store.RejectedHit]
		err := untilDatabaseAnswers(ctx, func() (err error) { found, err = s.find(ctx, at, next); return err })
		if err != nil {
			return err
		}
		if enough { // this was only to see whether there are more
			if r.result.More = len(found.items) > 0; r.result.More {
				return nil
			}
		} else {
			for _, each := range found.items {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := r.one(ctx, each.ID); err != nil {
					return err
				}
			}
			r.result.Scanned, r.result.Reasons = r.result.Scanned+int64(found.looked), r.mostFrequent()
			if bulk.Progress != nil {
				bulk.Progress(r.result)
			}
		}
		if found.next == nil {
			return nil
		}
		at = *found.next
	}
}

// one accepts a message again. Its error ends the action: the database failed, or the audit.
func (r *reAccepting) one(ctx context.Context, id string) error {
	target := "rejected message " + id
	var accepted []Accepted
	var err error
	if r.request {
		err = r.requestReAccept(ctx, r.actor, id, &r.filter)
	} else {
		accepted, err = r.acceptThrough(ctx, id)
	}
	still, stays := err.(*handler.StillBadError) // and nothing else failed
	switch {
	case err == nil:
		r.result.Done++
		if len(accepted) > 0 && !slices.ContainsFunc(accepted, func(a Accepted) bool { return !a.known() }) {
			r.result.Duplicates++
		}
	case stays:
		r.result.StillBad++
		r.stays(still.Err)
	case errors.Is(err, ErrNotFound):
		r.result.Skipped++
	case errors.Is(err, ErrBadInput), errors.Is(err, ErrPaused), errors.Is(err, ErrProcessing): // not here, or not now
		r.result.Skipped++
		r.stays(err)
	case (store.IsWaiting(err) && !errors.Is(err, ErrNotAudited) || errors.Is(err, errGivenUp)) && ctx.Err() == nil:
		// The audit row shows the attempt. If it fails too, the database is at fault and not the record.
		event := "timed out"
		if errors.Is(err, errGivenUp) {
			event = "connection lost"
		}
		if err := r.noteThrough(ctx, r.actor, ActionReAccept, target, skippedDetail{event, r.filter}); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
		r.result.Skipped++
		r.stays(err)
	default:
		return fmt.Errorf("%s: %w", target, err)
	}
	return nil
}

// errGivenUp means that a record's accept has lost its connection bulkTries times, and that the database answers.
var errGivenUp = errors.New("each try to accept it lost its connection")

// acceptThrough accepts a message again. A lost connection does not end the action, see untilDatabaseAnswers.
func (r *reAccepting) acceptThrough(ctx context.Context, id string) ([]Accepted, error) {
	before := ""
	for try := 1; ; try++ {
		accepted, auditID, err := r.acceptRejected(ctx, r.actor, id, &r.filter)
		if errors.Is(err, ErrNotFound) && before != "" { // the try before may have been committed
			found, failed := r.committed(ctx, before, err)
			if found {
				return nil, nil
			}
			return nil, cmp.Or(failed, err)
		}
		if err == nil || !lost(err) || ctx.Err() != nil {
			return accepted, err
		}
		if _, failed := r.committed(ctx, auditID, err); failed != nil {
			return nil, failed
		}
		if try == bulkTries {
			return nil, fmt.Errorf("%w: %w", errGivenUp, err)
		}
		before = auditID
	}
}

// skippedDetail is the audit's detail of a rejected message that was skipped because its accept took too long, or lost
// its connection.
type skippedDetail struct {
	Event  string         `json:"event"`
	Filter RejectedFilter `json:"filter"`
}

const (
	maxReasons  = 20   // are shown
	maxKinds    = 1000 // are distinguished
	reasonRunes = 300
)

// stays counts why a message stays rejected.
func (r *reAccepting) stays(why error) {
	text := []rune(fingerprint.Normalise(r.redactor.Error(redact.Value{}, why.Error())))
	reason := strings.TrimSpace(string(text[:min(len(text), reasonRunes)]))
	if _, known := r.reasons[reason]; !known && len(r.reasons) >= maxKinds {
		reason = "further reasons"
	}
	r.reasons[reason]++
}

// mostFrequent returns the reasons that are shown.
func (r *reAccepting) mostFrequent() []ReasonCount {
	var all []ReasonCount
	for reason, n := range r.reasons {
		all = append(all, ReasonCount{reason, n})
	}
	slices.SortFunc(all, func(a, b ReasonCount) int {
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Reason, b.Reason))
	})
	return all[:min(len(all), maxReasons)]
}

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
	now, err := o.Now(ctx) // another machine judges whether the request has expired
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
	now, err := o.Now(ctx)
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
