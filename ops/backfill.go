package ops

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
)

// Backfill gives a handler the statuses that it lacks for stored messages, as redeliveries of them would. It covers
// messages of its channel and type that were received from from on and before to. From is required; a zero to is now.
// It needs a Live, which knows what the handler subscribes to. Use it after a handler was added in a rolling deploy,
// once no program without the handler runs any more (contract 4.2, 11.1).
//
// A message gets no status if the handler has one under any of its keys, or if it is older than the handler's
// retention. Among channels that share their IDs, the channel on which a message came first counts. The new statuses
// are due now, or at the handler's own NotBefore.
//
// An ordered handler has to be paused, or nothing is done (ErrNotPaused): pause it, wait a heartbeat, backfill, resume.
// Each new status then takes its message's place in its lane, before later ones that have not run yet (contract 5.12).
//
// It works in chunks, like RetryMatching, and returns the counts so far also with an error. To continue, call it again.
// Do a DryRun first; its count reads 10,000 messages at most.
func (o statusActions) Backfill(
	ctx context.Context, actor Actor, handlerKey string, from, to time.Time, bulk Bulk,
) (BulkResult, error) {
	fail := func(result BulkResult, err error) (BulkResult, error) {
		return result, fmt.Errorf("%s handler %q: %w", ActionBackfill, handlerKey, err)
	}
	if err := o.Can(ActionBackfill); err != nil {
		return BulkResult{}, err
	}
	if err := actor.check(); err != nil {
		return fail(BulkResult{}, err)
	}
	b, err := o.newBackfill(ctx, actor, handlerKey, from, to)
	if err != nil {
		return fail(BulkResult{}, err)
	}
	if err := o.opts.Live.Ready(ctx); err != nil {
		return fail(BulkResult{}, err)
	}
	result, err := o.inChunks(ctx, actor, ActionBackfill, b.target, b.filter, bulk, b.count, b.run)
	if err != nil {
		return fail(result, err)
	}
	return result, nil
}

// backfill is one call of Backfill.
type backfill struct {
	statusActions
	actor  Actor
	of     Subscription
	key    string
	target string // the audit's
	filter Filter // the audit's
	begin  place
	before time.Time // as statements compare it
}

func (o statusActions) newBackfill(
	ctx context.Context, actor Actor, handlerKey string, from, to time.Time,
) (*backfill, error) {
	of, err := o.opts.Live.Subscription(handlerKey)
	if err != nil {
		return nil, err
	}
	if !of.Stored {
		return nil, badInput("handler key", "channel %q is Inline or Direct and stores no statuses", of.Channel)
	}
	if from.IsZero() {
		return nil, badInput("from", "it is required: the time since which messages were received")
	}
	now, err := o.Now(ctx)
	if err != nil {
		return nil, err
	}
	if to.IsZero() {
		to = now
	}
	if err := checkAges(from, to); err != nil {
		return nil, err
	}
	b := &backfill{statusActions: o, actor: actor, of: of, key: of.Handler.Key(), target: "handler " + of.Handler.Key(),
		filter: Filter{HandlerKeys: []string{of.Handler.Key()}, From: from.UTC(), To: to.UTC()}}
	oldest, before := o.roughly(from, to)
	b.begin, b.before = place{ListPlace: store.ListPlace{At: store.ListTime(oldest)}}, before
	return b, nil
}

// retained reports whether a message is within the handler's retention. If it is not, the handler's row was cleaned up
// and is not missing.
func (b *backfill) retained(receivedAt, now time.Time) bool {
	return b.of.Retention == 0 || !receivedAt.Before(now.Add(-b.of.Retention))
}

// backfillPage is how many messages one statement reads.
const backfillPage = 1000

// unhandled is a message without a row of the handler.
type unhandled struct {
	store.UnhandledMessage
	lane      *store.Lane
	notBefore time.Time
}

// find returns the messages among the next ones that lack a row; next is nil at the end.
func (b *backfill) find(
	ctx context.Context, after place, limit int,
) (found []unhandled, next *place, looked int, err error) {
	keys, err := b.store.SameHandler(ctx, b.largePool(ctx), b.of.Handler.Keys())
	if err != nil {
		return nil, nil, 0, err
	}
	scan := store.UnhandledScan{After: after.ListPlace, To: b.before, Limit: limit, Keys: keys,
		Namespace: b.of.Namespace, Type: b.of.Type, AnyType: b.of.Type == registry.AnyType}
	if b.of.Shared {
		scan.ReadsProperties = properties.ChannelBytes
	}
	read, err := b.store.ScanUnhandled(ctx, b.largePool(ctx), scan)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("find messages: %w", err)
	}
	now, err := b.Now(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	for _, m := range read {
		looked++
		next = &place{ListPlace: m.Place}
		if m.Lacks && (!b.of.Shared || properties.Channel(m.Properties) == b.of.Channel) && b.retained(m.ReceivedAt, now) &&
			within(m.ReceivedAt, b.filter.From, b.filter.To) {
			found = append(found, unhandled{UnhandledMessage: m})
		}
	}
	if looked < limit {
		next = nil
	}
	return found, next, looked, nil
}

func (b *backfill) count(ctx context.Context) (count Count, err error) {
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	after := &b.begin
	for looked := 0; looked < lookLimit; {
		found, next, more, err := b.find(ctx, *after, backfillPage)
		if err != nil {
			return Count{}, err
		}
		count.N += int64(len(found))
		if after, looked = next, looked+more; after == nil {
			return count, nil
		}
	}
	count.Capped = true
	return count, nil
}

func (b *backfill) run(ctx context.Context, bulk Bulk) (result BulkResult, err error) {
	for after := &b.begin; after != nil; {
		found, next, looked, err := b.find(ctx, *after, backfillPage)
		if err != nil {
			return result, err
		}
		result.Scanned += int64(looked)
		for each := range slices.Chunk(found, bulk.ChunkSize) {
			if bulk.Max > 0 {
				left := bulk.Max - result.Done - result.Skipped
				result.More = left < int64(len(each))
				each = each[:min(left, int64(len(each)))]
			}
			if len(each) > 0 {
				done, err := b.addChunk(ctx, each)
				if err != nil {
					return result, err
				}
				result.Done, result.Skipped = result.Done+int64(done), result.Skipped+int64(len(each)-done)
				if bulk.Progress != nil {
					bulk.Progress(result)
				}
			}
			if result.More {
				return result, nil
			}
		}
		after = next
	}
	return result, nil
}

// addChunk adds the rows of some messages in one transaction and returns how many it added.
func (b *backfill) addChunk(ctx context.Context, messages []unhandled) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	numbers := make([]int64, len(messages))
	for i := range messages {
		numbers[i] = messages[i].Place.Number
		if err := b.ask(ctx, &messages[i]); err != nil {
			return 0, fmt.Errorf("message %q: %w", messages[i].ID, err)
		}
	}
	var added []string
	err := b.auditedThrough(ctx, b.actor, ActionBackfill, b.target, func(ctx context.Context, tx *gorm.DB) (any, error) {
		pool := tx.Statement.ConnPool
		if err := b.checkPaused(ctx, pool); err != nil {
			return nil, err
		}
		locked, err := b.store.LockMessages(ctx, pool, numbers)
		if err != nil {
			return nil, err
		}
		// Between the read above and the lock a message may have become old, and its row may have been cleaned up.
		now, err := b.store.ClockIn(ctx, pool, b.opts.Clock.Now())
		if err != nil {
			return nil, err
		}
		rows, err := b.rows(messages, locked, now)
		if err != nil {
			return nil, err
		}
		keys, err := b.store.SameHandler(ctx, pool, b.of.Handler.Keys())
		if err != nil {
			return nil, err
		}
		added, err = b.store.AddStatuses(ctx, pool, b.key, keys, rows, now)
		if err == nil && len(added) == 0 {
			err = errNothing
		}
		return chunkDetail{Filter: b.filter, Statuses: added}, err
	})
	if err != nil || len(added) == 0 {
		return 0, err
	}
	b.wakeAfter(ctx, true, []store.ChangedStatus{{HandlerKey: b.key}})
	return len(added), nil
}

// rows returns the rows to add. It leaves out messages that cleanup deleted, or may delete, before they were locked.
func (b *backfill) rows(messages []unhandled, locked []int64, now time.Time) (rows []store.AddedStatus, err error) {
	for _, m := range messages {
		if !slices.Contains(locked, m.Place.Number) || !b.retained(m.ReceivedAt, now) {
			continue
		}
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("make a status ID: %w", err)
		}
		rows = append(rows, store.AddedStatus{ID: id.String(), MessageID: m.ID, MessageNumber: m.Place.Number, Lane: m.lane,
			NotBefore: m.notBefore})
	}
	return rows, nil
}

// checkPaused returns ErrNotPaused unless an ordered handler is paused by any of its keys.
func (b *backfill) checkPaused(ctx context.Context, pool gorm.ConnPool) error {
	if !b.of.Handler.Ordered() {
		return nil
	}
	paused, err := b.store.PausedKeys(ctx, pool, maxListed, true)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(b.of.Handler.Keys(), func(key string) bool { return slices.Contains(paused, key) }) {
		return fmt.Errorf("%w: an ordered handler is backfilled while it is paused, so that no later message runs first",
			ErrNotPaused)
	}
	return nil
}

// ask asks the handler for a message's lane and time. It reads one message at a time, because each may be large.
func (b *backfill) ask(ctx context.Context, m *unhandled) error {
	h := b.of.Handler
	if !h.Ordered() && h.NotBefore() == nil {
		return nil
	}
	message, err := b.store.LoadMessage(ctx, b.pool(ctx), m.Place.Number)
	if err != nil || message == nil { // gone: the lock will not find it either
		return err
	}
	raw, err := b.rawMessage(ctx, *message, true)
	if err != nil {
		return err
	}
	raw.Channel = b.of.Channel
	return routine.Protect("its ordering key or NotBefore", func() (err error) {
		m.lane = store.LaneOf(h.LaneKey(), h.OrderingKey(raw))
		if at := h.NotBefore(); at != nil {
			m.notBefore, err = b.checkDue(at(raw))
		}
		return err
	})
}
