package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdialect"
)

// A partition has the numbers of one slot: slot·slotSize and up. A new partition begins when the sequence is set to the
// next slot, which locks nothing. So a time is a slot although a number says nothing about time, and if no cleaner runs
// for long, the current partition goes on taking rows. Up to 900,000 slots are exact as numbers of JavaScript.
const slotSize = 10_000_000_000

// maxSlots bounds the partitions, which claims look into, whatever programs with shorter retentions ask for.
const maxSlots = 16

// maxKept and maxKeptBytes bound the messages that are moved out of a partition while the tables are locked.
const (
	maxKept      = 1000
	maxKeptBytes = 16 << 20
)

// lockWait bounds how long all statements wait behind each lock of a change of the partitions. It is shorter than
// PostgreSQL's deadlock_timeout: if a transaction that waits for us holds what we wait for, we give up before one of
// its statements fails.
const lockWait = `SET LOCAL lock_timeout = '500ms'`

// detached is the comment of a partition that cleanup has detached, and noMore that of the IDs' table while Unpartition
// waits for partitions to go.
const (
	detached = "detached by a cleanup, to be dropped"
	noMore   = "no partition begins any more"
)

// These statements read the catalog by the table's OID, or the sequence.
const (
	slotsSQL = `
SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass('{parted messages}')`

	currentSlotSQL = `SELECT COALESCE(pg_sequence_last_value(pg_get_serial_sequence('{message ids}', 'number')::regclass), 0)`

	// detachedSQL finds tables by their names and the comment of dropSQL: a partition that someone else has detached is
	// not ours to drop.
	detachedSQL = `
SELECT c.relname::text FROM pg_class p JOIN pg_class c ON c.relnamespace = p.relnamespace AND c.relkind = 'r' AND NOT c.relispartition
	AND left(c.relname, length(p.relname) + 2) = p.relname || '_p' AND obj_description(c.oid, 'pg_class') = '` + detached + `'
WHERE p.oid = to_regclass($1)`

	// beginSlotSQL never sets the sequence back. Whoever sets it takes turns with others.
	beginSlotSQL = `
SELECT setval(pg_get_serial_sequence('{message ids}', 'number')::regclass, $1::bigint)
WHERE COALESCE(pg_sequence_last_value(pg_get_serial_sequence('{message ids}', 'number')::regclass), 0) < $1::bigint`
	noMoreSQL   = `SELECT COALESCE(obj_description('{message ids}'::regclass, 'pg_class'), '') = '` + noMore + `'`
	slotTurnSQL = `SELECT pg_advisory_xact_lock(hashtextextended('inbox partitions ' || '{message ids}'::regclass::oid, 0))`
)

// These statements use the index on (received_at, number) of one partition.
const (
	newestSQL = `SELECT max(received_at) FROM {leaf}`
	oldestSQL = `SELECT min(received_at) FROM {leaf}`
)

// inPartition are the numbers of a partition, by its unique index. What was kept of earlier ones is below them.
const inPartition = `number BETWEEN (SELECT min(number) FROM {leaf}) AND (SELECT max(number) FROM {leaf})`

// knownSQL uses message_ids_number. Its limit says whether there are too many.
const knownSQL = `SELECT number FROM {message ids} WHERE ` + inPartition + ` ORDER BY number LIMIT $1`

// bytesSQL uses the partition's unique index on numbers. It decompresses nothing.
const bytesSQL = `
SELECT COALESCE(sum(octet_length(content)::bigint + octet_length(serialized_properties)), 0)::bigint FROM {leaf} WHERE number = ANY ($1::bigint[])`

// stayingSQL finds which of the known messages are still known, by message_ids_number: none of such a partition becomes
// known again. It passes over the partition's part of that index, which is full of what was just deleted. It also finds
// the others with an open status, in the order of handler_statuses_open: one that was forgotten may have been run again
// by an operator. And it finds those that are not old, by the index on (received_at, number): a transaction that took
// its number before the next partition began may have come later.
const stayingSQL = `
(SELECT number FROM {message ids} WHERE number = ANY ($2::bigint[]))
UNION
(SELECT message_number FROM {statuses leaf} WHERE ` + base.OpenSQL + ` AND message_number <> ALL ($2::bigint[]) ORDER BY id LIMIT $1)
UNION
(SELECT number FROM {leaf} m WHERE received_at >= $3::timestamptz AND (SELECT true FROM {message ids} i WHERE i.number = m.number) ORDER BY received_at, number LIMIT $1)`

// rememberSQL uses the unique index on the partition's numbers. A known ID is another message's by now.
const rememberSQL = `
INSERT INTO {message ids} (id, namespace, number)
SELECT id, namespace, number FROM {leaf} WHERE number = ANY ($1::bigint[]) ON CONFLICT DO NOTHING`

const (
	messageColumnsSQL = `id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, received_at`
	statusColumnsSQL  = `id, message_number, sequence, created_at, error_count, abandoned_count, interrupted_count, requeued_count, message_bytes,
	message_id, handler_key, is_poisoned, is_waiting, holds_lane, outcome, version, processing_started_at, completed_at, next_attempt_at, published_at,
	poisoned_at, worker_id, lane_handler, lane_key, last_error, fingerprint, attempts`
)

// dropSQL takes a partition out of the tables and moves what stays. Once the partition is detached, its numbers belong
// to the partitions of what is kept. These statements use the partition's unique index on numbers and its
// handler_statuses_pkey.
var dropSQL = []string{
	`ALTER TABLE {statuses} DETACH PARTITION {statuses leaf}`, `ALTER TABLE {messages} DETACH PARTITION {leaf}`,
	`COMMENT ON TABLE {statuses leaf} IS '` + detached + `'`, `COMMENT ON TABLE {leaf} IS '` + detached + `'`,
	`INSERT INTO {messages} (` + messageColumnsSQL + `) SELECT ` + messageColumnsSQL + ` FROM {leaf} WHERE number = ANY ($1::bigint[])`,
	`INSERT INTO {statuses} (` + statusColumnsSQL + `) SELECT ` + statusColumnsSQL + ` FROM {statuses leaf} WHERE message_number = ANY ($1::bigint[])`,
}

// These statements use the unique index on numbers of one partition, message_ids_number and handler_statuses_pkey.
// Messages with an open status, which an operator has run again, stay: also if that was after the first statement.
const (
	isForgotten  = `(SELECT true FROM {message ids} i WHERE i.number = m.number) IS NULL`
	forgottenSQL = `
WITH read AS MATERIALIZED (SELECT number FROM {leaf} WHERE number > $2 ORDER BY number LIMIT $1)
SELECT number, ` + isForgotten + `
	AND NOT EXISTS (SELECT FROM {statuses leaf} s WHERE s.message_number = m.number AND s.completed_at IS NULL OFFSET 0)
FROM read m ORDER BY number`
	thinStatusesSQL = `
DELETE FROM {statuses leaf} s WHERE s.message_number = ANY ($1::bigint[]) AND s.completed_at IS NOT NULL
	AND (SELECT true FROM {message ids} i WHERE i.number = s.message_number) IS NULL`
	thinSQL = `
DELETE FROM {leaf} m WHERE m.number = ANY ($1::bigint[]) AND ` + isForgotten + `
	AND NOT EXISTS (SELECT FROM {statuses leaf} s WHERE s.message_number = m.number OFFSET 0)`
)

// statusesStorage is what the migration gives the statuses' table, for each of its partitions.
const statusesStorage = ` WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.01, vacuum_index_cleanup = on)`

// keptSlot stands for the partitions of what is kept, and allSlots for all partitions.
const (
	keptSlot = -1
	allSlots = -2
)

// ofSlot returns a statement for one partition.
func (p *Store) ofSlot(statement string, slot int64) string {
	name := func(table, suffix string) string { return strings.TrimSuffix(p.Text(table), `"`) + suffix + `"` }
	own := "_p" + strconv.FormatInt(slot, 10)
	switch slot {
	case keptSlot:
		own = "_kept"
	case allSlots:
		own = ""
	}
	return p.Text(strings.NewReplacer("{leaf}", name("{parted messages}", own), "{statuses leaf}", name("{parted statuses}", own),
		"{kept}", name("{parted messages}", "_kept"), "{kept statuses}", name("{parted statuses}", "_kept")).Replace(statement))
}

// slots returns the partitions from the first to the one that takes new rows.
func (p *Store) slots(ctx context.Context, pool gorm.ConnPool) (slots []int64, current int64, err error) {
	names, err := store.Query(ctx, pool, p.Text(slotsSQL), store.Value[string])
	if err != nil {
		return nil, 0, err
	}
	last, err := store.Query(ctx, pool, p.Text(currentSlotSQL), store.Value[int64])
	if err != nil {
		return nil, 0, err
	}
	return slotsOf(names), last[0] / slotSize, nil
}

// slotsOf returns the slots in the names of partitions, ascending.
func slotsOf(names []string) (slots []int64) {
	for _, name := range names {
		if slot, err := strconv.ParseInt(name[strings.LastIndex(name, "_p")+2:], 10, 64); err == nil {
			slots = append(slots, slot)
		}
	}
	slices.Sort(slots)
	return slots
}

// age runs newestSQL or oldestSQL. It returns the zero time for an empty partition.
func (p *Store) age(ctx context.Context, statement string, slot int64) (time.Time, error) {
	found, err := store.Query(ctx, p.Pool(ctx), p.ofSlot(statement, slot), store.Value[sql.NullTime])
	if err != nil {
		return time.Time{}, err
	}
	return found[0].Time.UTC(), nil
}

// expiredSlots returns the first partitions, up to the last one that takes no new messages and of which all are older
// than before. Younger messages in those before it have the time of a clock that was wrong, and are kept.
func (p *Store) expiredSlots(ctx context.Context, before time.Time) (expired, rest []int64, err error) {
	slots, current, err := p.slots(ctx, p.Pool(ctx))
	n := 0
	for i, slot := range slots {
		if err != nil || slot >= current {
			break
		}
		var newest time.Time
		if newest, err = p.age(ctx, newestSQL, slot); newest.Before(before) && (n == i || !newest.IsZero()) {
			n = i + 1
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return slots[:n], slots[n:], nil
}

// walkBound returns below which number a cleanup reads messages. Rows of a partition that will be dropped are left
// alone until all of them have expired, so that each of them is read once. While Unpartition waits for partitions to
// go, or as many stay as may be, all are read: the last one takes what comes, and would never expire.
func (p *Store) walkBound(ctx context.Context, req store.CleanupRequest) (int64, error) {
	if !p.isPartitioned() {
		return math.MaxInt64, nil
	}
	expired, rest, err := p.expiredSlots(ctx, req.Earliest())
	if err != nil || len(rest) == 0 {
		return math.MaxInt64, err
	}
	p.droppable.Store(rest[0] * slotSize)
	full := len(expired)+len(rest) >= maxSlots
	if ending, err := p.noMore(ctx); err != nil || ending || full || req.Live {
		return math.MaxInt64, err
	}
	return rest[0] * slotSize, nil
}

func (p *Store) noMore(ctx context.Context) (bool, error) {
	found, err := store.Query(ctx, p.Pool(ctx), p.Text(noMoreSQL), store.Value[bool])
	return err == nil && found[0], err
}

// deleteForgotten deletes messages that this transaction has forgotten, unless their partition is to be dropped.
func (p *Store) deleteForgotten(ctx context.Context, pool gorm.ConnPool, numbers []int64) error {
	if !p.isPartitioned() {
		return nil
	}
	if _, err := p.thinOf(ctx, pool, keptSlot, numbers); err != nil {
		return err
	}
	below := p.droppable.Load()
	numbers = slices.DeleteFunc(slices.Clone(numbers), func(number int64) bool { return number < below })
	_, err := p.thinOf(ctx, pool, allSlots, numbers)
	return err
}

func (p *Store) thinOf(ctx context.Context, pool gorm.ConnPool, slot int64, numbers []int64) (int64, error) {
	if len(numbers) == 0 {
		return 0, nil
	}
	if _, err := store.Exec(ctx, pool, p.ofSlot(thinStatusesSQL, slot), numbers); err != nil {
		return 0, err
	}
	return store.Exec(ctx, pool, p.ofSlot(thinSQL, slot), numbers)
}

// thin deletes what was forgotten from a partition, of at most so many messages after a number. It returns the last
// number that it has read, or 0 at the end.
func (p *Store) thin(ctx context.Context, slot, after int64, limit int) (deleted, next int64, err error) {
	err = p.withoutJIT(ctx, func(pool gorm.ConnPool) error {
		var numbers []int64
		read, err := store.Query(ctx, pool, p.ofSlot(forgottenSQL, slot), func(rows *sql.Rows, number *int64) error {
			var forgotten bool
			err := rows.Scan(number, &forgotten)
			if forgotten {
				numbers = append(numbers, *number)
			}
			return err
		}, limit, after)
		if err != nil {
			return err
		}
		if next = 0; len(read) == limit {
			next = read[limit-1]
		}
		deleted, err = p.thinOf(ctx, pool, slot, numbers)
		return err
	})
	return deleted, next, err
}

// KeepPartitions begins a new partition and drops those that have expired.
func (p *Store) KeepPartitions(ctx context.Context, req store.PartitionsRequest) (r store.PartitionsResult, err error) {
	if partitioned, err := p.Partitioned(ctx); err != nil || !partitioned {
		return r, err
	}
	began, err := p.beginSlot(ctx, req)
	if began {
		r.Began = 1
	}
	errs := []error{base.Doing("begin a partition", err)}
	// Of what is kept, most is deleted when it is forgotten. Here goes what was forgotten earlier, and then run again.
	if req.After == 0 {
		errs = append(errs, base.Doing("delete what was kept", p.thinKept(ctx, req.Limit, &r)))
	}
	expired, _, err := p.expiredSlots(ctx, req.Before)
	errs = append(errs, base.Doing("find expired partitions", err))
	for i, slot := range expired {
		if i+1 < len(expired) && expired[i+1]*slotSize <= req.After {
			r.Crowded++ // an earlier call has read all of it
			continue
		}
		if err = p.endSlot(ctx, slot, req, &r); err != nil {
			errs = append(errs, fmt.Errorf("drop partition %d: %w", slot, err))
		}
		if r.Next != 0 || errors.Is(err, store.ErrPartitionsBusy) || ctx.Err() != nil {
			break
		}
	}
	errs = append(errs, base.Doing("drop a detached partition", p.dropDetached(ctx)))
	return r, errors.Join(errs...)
}

func (p *Store) thinKept(ctx context.Context, limit int, r *store.PartitionsResult) error {
	for after := int64(math.MinInt64); after != 0; {
		deleted, next, err := p.thin(ctx, keptSlot, after, limit)
		if r.Deleted, after = r.Deleted+deleted, next; err != nil {
			return err
		}
	}
	return nil
}

var errCrowded = errors.New("too many messages of the partition stay")

// endSlot drops an expired partition, or deletes what was forgotten from one that cannot be dropped yet.
func (p *Store) endSlot(ctx context.Context, slot int64, req store.PartitionsRequest, r *store.PartitionsResult) error {
	known, err := store.Query(ctx, p.Pool(ctx), p.ofSlot(knownSQL, slot), store.Value[int64], maxKept+1)
	if err != nil {
		return err
	}
	known = append([]int64{}, known...) // nil would be NULL
	size, err := store.Query(ctx, p.Pool(ctx), p.ofSlot(bytesSQL, slot), store.Value[int64], known)
	if err != nil {
		return err
	}
	if len(known) <= maxKept && size[0] <= maxKeptBytes {
		moved, err := p.drop(ctx, slot, known, req.Before)
		if err == nil {
			r.Dropped, r.Moved = r.Dropped+1, r.Moved+moved
		}
		if !errors.Is(err, errCrowded) {
			return err
		}
	}
	r.Crowded++
	deleted, next, err := p.thin(ctx, slot, req.After, req.Limit)
	r.Deleted, r.Next = r.Deleted+deleted, next
	return err
}

// drop detaches a partition in a transaction that moves what stays, of the messages that were known shortly before. The
// tables are not locked any more while its files are removed (dropDetached).
//
// All that could add something to a message that is forgotten has found its ID before the ID was deleted, and locked
// it. So it was committed before, and the message is not forgotten, or its status is open.
func (p *Store) drop(ctx context.Context, slot int64, known []int64, before time.Time) (moved int, err error) {
	err = p.locked(ctx, func(pool gorm.ConnPool) error {
		staying, err := store.Query(ctx, pool, p.ofSlot(stayingSQL, slot), store.Value[int64], maxKept+1, known, before.UTC())
		if err != nil {
			return err
		}
		if len(staying) > maxKept {
			return errCrowded
		}
		if staying == nil {
			staying = []int64{} // nil would be NULL
		}
		if _, err := store.Exec(ctx, pool, p.ofSlot(rememberSQL, slot), staying); err != nil {
			return err
		}
		for _, statement := range dropSQL {
			var args []any
			if strings.Contains(statement, "$1") {
				args = []any{staying}
			}
			if _, err := store.Exec(ctx, pool, p.ofSlot(statement, slot), args...); err != nil {
				return err
			}
		}
		moved = len(staying)
		return nil
	})
	return moved, err
}

// locked runs work in a transaction that has locked both tables. It fails with store.ErrPartitionsBusy without its
// locks, or without one that the work takes.
func (p *Store) locked(ctx context.Context, work func(gorm.ConnPool) error) error {
	err := p.Transaction(ctx, func(pool gorm.ConnPool) error {
		if err := p.lockTables(ctx, pool); err != nil {
			return err
		}
		return work(pool)
	})
	if state := pgdialect.SQLState(err); state == "55P03" || state == "40P01" { // lock not available, or a deadlock
		return fmt.Errorf("%w: %w", store.ErrPartitionsBusy, err)
	}
	return err
}

// lockTables locks both tables until the transaction ends, in the order in which accepts do. First it keeps autovacuum
// away from them and their partitions, which no program waits for: a server ends an autovacuum that it waits for only
// after deadlock_timeout, which is longer than lockWait.
func (p *Store) lockTables(ctx context.Context, pool gorm.ConnPool) error {
	for _, statement := range []string{`SET LOCAL lock_timeout = '5s'`,
		`LOCK TABLE {messages}, {statuses} IN SHARE UPDATE EXCLUSIVE MODE`, lockWait, `LOCK TABLE ONLY {messages} IN ACCESS EXCLUSIVE MODE`,
		`LOCK TABLE ONLY {statuses} IN ACCESS EXCLUSIVE MODE`} {
		if _, err := store.Exec(ctx, pool, p.Text(statement)); err != nil {
			return err
		}
	}
	return nil
}

// dropDetached drops partitions that were detached. What stays of them was moved with that. Statuses go first: those of
// the plain layout refer to their messages. A table on which others depend stays, and keeps no other.
func (p *Store) dropDetached(ctx context.Context) error {
	var errs []error
	for _, of := range [][2]string{{"{parted statuses}", "{statuses leaf}"}, {"{parted messages}", "{leaf}"}} {
		names, err := store.Query(ctx, p.Pool(ctx), detachedSQL, store.Value[string], p.Text(of[0]))
		errs = append(errs, err)
		for _, slot := range slotsOf(names) {
			_, err := store.Exec(ctx, p.Pool(ctx), p.ofSlot(`DROP TABLE IF EXISTS `+of[1], slot))
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// newSlotSQL makes the next partition.
var newSlotSQL = []string{
	`CREATE TABLE IF NOT EXISTS {leaf} PARTITION OF {parted messages} FOR VALUES FROM ({start}) TO ({next})`,
	`CREATE TABLE IF NOT EXISTS {statuses leaf} PARTITION OF {parted statuses} FOR VALUES FROM ({start}) TO ({next})` + statusesStorage,
	granted("{parted messages}", "{parted statuses}", "{leaf}", "{statuses leaf}"),
}

// makeSlot makes a partition, in a transaction that has locked the tables.
func (p *Store) makeSlot(ctx context.Context, pool gorm.ConnPool, slot int64) error {
	for _, statement := range newSlotSQL {
		statement = strings.NewReplacer("{start}", strconv.FormatInt(slot*slotSize, 10),
			"{next}", strconv.FormatInt((slot+1)*slotSize, 10)).Replace(statement)
		if _, err := store.Exec(ctx, pool, p.ofSlot(statement, slot)); err != nil {
			return err
		}
	}
	return nil
}

// beginSlot makes the next partition and then sets the sequence to it, if the current one has rows for long enough. The
// sequence does not roll back, so the partition is committed first.
func (p *Store) beginSlot(ctx context.Context, req store.PartitionsRequest) (bool, error) {
	slots, current, err := p.slots(ctx, p.Pool(ctx))
	if err != nil || req.Every <= 0 || len(slots) >= maxSlots {
		return false, err
	}
	if ending, err := p.noMore(ctx); err != nil || ending {
		return false, err
	}
	oldest, err := p.age(ctx, oldestSQL, current)
	if err != nil || oldest.IsZero() || req.Now.Sub(oldest) < req.Every {
		return false, err
	}
	err = p.locked(ctx, func(pool gorm.ConnPool) error { return p.makeSlot(ctx, pool, current+1) })
	if err != nil {
		return false, err
	}
	return true, p.toSlot(ctx, current+1)
}

// toSlot sets the sequence to a partition, unless it has gone further.
func (p *Store) toSlot(ctx context.Context, slot int64) error {
	return p.Transaction(ctx, func(pool gorm.ConnPool) error {
		if _, err := store.Exec(ctx, pool, p.Text(slotTurnSQL)); err != nil {
			return err
		}
		_, err := store.Exec(ctx, pool, p.Text(beginSlotSQL), slot*slotSize)
		return err
	})
}
