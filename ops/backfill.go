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

	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
)

// Backfill gives a handler the statuses that it lacks for stored messages, as redeliveries of them would: those of its
// channel and type that were received from from on and before to. From is required; a zero to is now. It needs a Live,
// which knows what the handler subscribes to. Use it after a handler was added in a rolling deploy, once no program
// without the handler runs any more (contract 4.2, 11.1).
//
// A message gets none if the handler has one under any of its keys, or if it is older than the handler's retention.
// Among channels that share their IDs, the channel on which a message came first counts. The new statuses are due now.
//
// An ordered handler has to be paused, or nothing is done (ErrNotPaused): pause it, wait a heartbeat, backfill, resume.
// Each new status then takes its message's place in its lane, before later ones that have not run yet (contract 5.12).
//
// It works in chunks, like RetryMatching, and returns what was done also with an error. To continue, call it again. Do
// a DryRun first; its count reads 10,000 messages at most.
func (o *Ops) Backfill(
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
	b, err := o.newBackfill(actor, handlerKey, from, to)
	if err != nil {
		return fail(BulkResult{}, err)
	}
	result, err := o.inChunks(ctx, actor, ActionBackfill, b.target, b.filter, bulk, b.count,
		func(ctx context.Context, chunk int) (BulkResult, error) { return b.run(ctx, chunk, bulk) })
	if err != nil {
		return fail(result, err)
	}
	return result, nil
}

// backfill is one call of Backfill.
type backfill struct {
	*Ops
	actor  Actor
	of     Subscription
	key    string
	keys   string // all keys of the handler, as an argument
	target string // the audit's
	filter Filter // the audit's
	begin  place
	before any
}

func (o *Ops) newBackfill(actor Actor, handlerKey string, from, to time.Time) (*backfill, error) {
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
	if to.IsZero() {
		to = o.opts.Clock.Now()
	}
	if err := checkAges(from, to); err != nil {
		return nil, err
	}
	b := &backfill{Ops: o, actor: actor, of: of, key: of.Handler.Key(), target: "handler " + of.Handler.Key(),
		filter: Filter{HandlerKeys: []string{of.Handler.Key()}, From: from.UTC(), To: to.UTC()}}
	if b.keys, err = jsonOf(of.Handler.Keys()); err != nil {
		return nil, err
	}
	oldest, before := o.roughly(from, to)
	b.begin, b.before = place{At: store.SQLiteTime(oldest)}, o.stamp(before)
	return b, nil
}

// retained reports whether a message is within the handler's retention. If it is not, the handler's
// row was cleaned up and is not missing.
func (b *backfill) retained(receivedAt time.Time) bool {
	return b.of.Retention == 0 || !receivedAt.Before(b.opts.Clock.Now().Add(-b.of.Retention))
}

// backfillPage is how many messages one statement reads.
const backfillPage = 1000

// listUnhandled reads messages by the index on (received_at, number). It finds the handler's rows by
// the statuses' primary key, message by message: a join may be planned as a scan of the whole table.
const listUnhandled = `
WITH walked AS (
	SELECT number, id, namespace, type, received_at, {received as stored} AS at, serialized_properties FROM {messages}
	WHERE (received_at, number) > ($1, $2) AND received_at < $4 ORDER BY received_at, number LIMIT $5
)
SELECT number, at, received_at, id, CASE WHEN namespace = $6 AND type = $7 THEN
		(SELECT count(*) FROM {statuses} s WHERE s.message_number = walked.number AND s.handler_key {= any text}) = 0 ELSE false END,
	CASE WHEN $8 THEN substr(serialized_properties, 1, $9) ELSE '' END
FROM walked ORDER BY received_at, number`

// unhandled is a message without a row of the handler.
type unhandled struct {
	number     int64
	id         string
	receivedAt time.Time
	lane       *store.Lane
}

// find returns the messages among the next ones that lack a row; next is nil at the end.
func (b *backfill) find(
	ctx context.Context, after place, limit int,
) (found []unhandled, next *place, looked int, err error) {
	at, err := b.argument(after.At)
	if err != nil {
		return nil, nil, 0, err
	}
	_, err = readMany(ctx, b.Ops, listUnhandled, func(rows *sql.Rows, _ *struct{}) error {
		var m unhandled
		var received store.Stamp
		var as stored
		var lacks bool
		var beginning string
		if err := rows.Scan(&m.number, &as, &received, &m.id, &lacks, &beginning); err != nil {
			return err
		}
		looked++
		next = &place{At: string(as), Number: m.number}
		m.receivedAt = received.Time
		if lacks && (!b.of.Shared || properties.Channel(beginning) == b.of.Channel) && b.retained(m.receivedAt) &&
			!m.receivedAt.Before(b.filter.From) && m.receivedAt.Before(b.filter.To) {
			found = append(found, m)
		}
		return nil
	}, at, after.Number, b.keys, b.before, limit, b.of.Namespace, b.of.Type, b.of.Shared, properties.ChannelBytes)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("find messages: %w", err)
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

func (b *backfill) run(ctx context.Context, chunk int, bulk Bulk) (result BulkResult, err error) {
	for after := &b.begin; after != nil; {
		found, next, looked, err := b.find(ctx, *after, backfillPage)
		if err != nil {
			return result, err
		}
		result.Looked += int64(looked)
		for each := range slices.Chunk(found, chunk) {
			if bulk.Most > 0 {
				left := bulk.Most - result.Done - result.Skipped
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

// lockUnhandled uses the unique index on the messages' numbers. It keeps cleanup and accepts away
// from them.
const lockUnhandled = `SELECT number FROM {messages} WHERE number {= any} {as accepts lock}`

// addStatuses finds what a message has, and conflicts, by the statuses' primary key. It is a statement
// of its own after the lock, so that it sees what an accept that held the lock before has added. A row
// gets the earliest sequence that its message has: only that of another handler's row shows when the
// message was accepted, since numbers do not follow the order of one accept. A message without any row
// is about to be cleaned up.
const addStatuses = `
INSERT INTO {statuses} (id, message_number, message_id, handler_key, sequence, message_bytes, created_at, lane_handler, lane_key)
SELECT m.id, m.number, m.message_id, $4, (SELECT min(s.sequence) FROM {statuses} s WHERE s.message_number = m.number),
	(SELECT max(s.message_bytes) FROM {statuses} s WHERE s.message_number = m.number), {at}, m.lane_handler, m.lane_key
FROM (
	SELECT CAST({0} AS bigint) AS number, {1} AS message_id, {2 as ID} AS id, CAST({3} AS bigint) AS lane_handler, CAST({4} AS bigint) AS lane_key
	FROM {list}
) m
WHERE (SELECT count(*) FROM {statuses} s WHERE s.message_number = m.number AND s.handler_key {= any text}) = 0
	AND (SELECT min(s.sequence) FROM {statuses} s WHERE s.message_number = m.number) IS NOT NULL
ON CONFLICT (message_number, handler_key) DO NOTHING
RETURNING id`

// addChunk adds the rows of some messages in one transaction and returns how many it added.
func (b *backfill) addChunk(ctx context.Context, messages []unhandled) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	numbers := make([]int64, len(messages))
	for i := range messages {
		numbers[i] = messages[i].number
		if err := b.setLane(ctx, &messages[i]); err != nil {
			return 0, fmt.Errorf("message %q: %w", messages[i].id, err)
		}
	}
	list, err := jsonOf(numbers)
	if err != nil {
		return 0, err
	}
	var added []string
	err = b.auditedThrough(ctx, b.actor, ActionBackfill, b.target, func(ctx context.Context, tx *gorm.DB) (any, error) {
		pool := tx.Statement.ConnPool
		if err := b.checkPaused(ctx, pool); err != nil {
			return nil, err
		}
		locked, err := query(ctx, b.Ops, pool, lockUnhandled, store.Value[int64], list)
		if err != nil {
			return nil, err
		}
		rows, err := b.rows(messages, locked)
		if err != nil {
			return nil, err
		}
		added, err = query(ctx, b.Ops, pool, addStatuses, store.Value[string], rows, b.stamp(b.opts.Clock.Now()), b.keys,
			b.key)
		if err == nil && len(added) == 0 {
			err = errNothing
		}
		return chunkDetail{Filter: b.filter, Statuses: added}, err
	})
	if errors.Is(err, errNothing) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	b.wakeAfter(ctx, true, []changed{{handlerKey: b.key}})
	return len(added), nil
}

// rows returns the rows to add as an argument: those of messages that still exist and are retained
// now that cleanup cannot touch them.
func (b *backfill) rows(messages []unhandled, locked []int64) (string, error) {
	rows := [][5]any{}
	for _, m := range messages {
		if !slices.Contains(locked, m.number) || !b.retained(m.receivedAt) {
			continue
		}
		id, err := uuid.NewV7()
		if err != nil {
			return "", fmt.Errorf("make a status ID: %w", err)
		}
		row := [5]any{m.number, m.id, id.String(), nil, nil}
		if m.lane != nil {
			row[3], row[4] = m.lane.Handler, m.lane.Key
		}
		rows = append(rows, row)
	}
	return jsonOf(rows)
}

// lockPaused keeps a resume waiting until the chunk has ended. Otherwise later rows could run while the chunk waits for
// the lock of a message, and the chunk would then add an earlier one.
const lockPaused = pausedKeys + ` {for update}`

// checkPaused returns ErrNotPaused unless an ordered handler is paused by any of its keys.
func (b *backfill) checkPaused(ctx context.Context, pool gorm.ConnPool) error {
	if !b.of.Handler.Ordered() {
		return nil
	}
	paused, err := query(ctx, b.Ops, pool, lockPaused, store.Value[string], maxListed)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(b.of.Handler.Keys(), func(key string) bool { return slices.Contains(paused, key) }) {
		return fmt.Errorf("%w: an ordered handler is backfilled while it is paused, so that no later message runs first",
			ErrNotPaused)
	}
	return nil
}

// setLane sets the lane of a message of an ordered handler. It reads one message at a time, because
// each may be large.
func (b *backfill) setLane(ctx context.Context, m *unhandled) error {
	if !b.of.Handler.Ordered() {
		return nil
	}
	messages, err := readRows(ctx, b.Ops, loadMessage, scanWholeMessage, m.number)
	if err != nil || len(messages) == 0 { // gone: the lock will not find it either
		return err
	}
	raw, err := rawMessage(messages[0])
	if err != nil {
		return err
	}
	raw.Channel = b.of.Channel
	return routine.Protect("its ordering key", func() error {
		m.lane = store.LaneOf(b.of.Handler.LaneKey(), b.of.Handler.OrderingKey(raw))
		return nil
	})
}
