package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// The partition p7 has the numbers of one slot: 7·slotSize and up. A new partition begins when the counter of
// {message ids} is raised to the next slot, which locks nothing. So a time is a slot although a number says nothing
// about time, and if no cleaner runs for long, the last partition goes on taking rows. The first partition is kept:
// what stays of those that were dropped.
const slotSize = 10_000_000_000

// maxSlots bounds the partitions, which claims look into, whatever programs with shorter retentions ask for.
const maxSlots = 16

// maxKept and maxKeptBytes bound the messages that are copied while the tables are locked.
const (
	maxKept      = 1000
	maxKeptBytes = 16 << 20
)

// sideComment marks the tables that we may drop, from the moment they exist.
const sideComment = "inbox: made for its partitions"

// These statements use the index on (received_at, number) of one partition.
const (
	newestSQL = `SELECT received_at FROM {parted messages} PARTITION ({part}) FORCE INDEX (received_at) ORDER BY received_at DESC LIMIT 1`
	oldestSQL = `SELECT received_at FROM {parted messages} PARTITION ({part}) FORCE INDEX (received_at) ORDER BY received_at LIMIT 1`
)

const (
	// rememberedSQL uses the unique key on the numbers of IDs. Its limit says whether there are too many.
	rememberedSQL = `
SELECT number FROM {message ids} FORCE INDEX (number) WHERE number >= ?1 AND number < ?2 ORDER BY number LIMIT ?3`
	// stillKnownSQL uses the unique key on the numbers of IDs, and lateSQL the index on (received_at, number).
	stillKnownSQL = `SELECT number FROM {message ids} FORCE INDEX (number) WHERE number IN ({list ?1})`
	lateSQL       = `
SELECT number FROM {parted messages} PARTITION ({part}) FORCE INDEX (received_at) WHERE received_at >= ?1
	AND (SELECT 1 FROM {message ids} FORCE INDEX (number) WHERE {message ids}.number = {parted messages}.number) IS NOT NULL LIMIT ?2`
	bytesSQL = `
SELECT COALESCE(SUM(LENGTH(content) + LENGTH(serialized_properties)), 0) FROM {parted messages} FORCE INDEX (PRIMARY) WHERE number IN ({list ?1})`

	// openSQL finds open statuses of one partition: it reads all of the due index, and a range of that on parked rows.
	openSQL = `
(SELECT message_number FROM {parted statuses} PARTITION ({part}) FORCE INDEX (due) WHERE due_at IS NOT NULL LIMIT ?1)
UNION (SELECT message_number FROM {parted statuses} PARTITION ({part}) FORCE INDEX (parked) WHERE parked >= 1 LIMIT ?1)`

	// rememberSQL uses primary keys. It passes over known IDs: of this message, or of another one by now.
	rememberSQL = `
INSERT IGNORE INTO {message ids} (id, namespace, number) SELECT id, namespace, number FROM {parted messages} WHERE number IN ({list ?1})`
	// copySQL uses the primary key, or the unique key on (message_number, handler_key).
	copySQL = `INSERT INTO %[1]s (%[2]s) SELECT %[2]s FROM %[3]s WHERE %[4]s IN ({list ?1})`
)

// These statements forget messages, and delete what was forgotten, by the unique key on the numbers of IDs and primary
// keys. Open statuses, which an operator has run again, stay with their messages.
const (
	forgetSQL       = `DELETE x FROM ({rows ?1}) c STRAIGHT_JOIN {message ids} x FORCE INDEX (number) ON x.number = c.c0`
	thinStatusesSQL = `
DELETE x FROM ({rows ?1}) c STRAIGHT_JOIN {parted statuses} x FORCE INDEX (message) ON x.message_number = c.c0
WHERE x.completed_at IS NOT NULL AND (SELECT 1 FROM {message ids} i FORCE INDEX (number) WHERE i.number = x.message_number) IS NULL`
	// emptySQL is a statement of its own: what a DELETE reads, its trigger could not change. Of NOT EXISTS, MySQL would
	// make a join that reads all IDs.
	emptySQL = `
SELECT c.c0 FROM ({rows ?1}) c WHERE (SELECT 1 FROM {message ids} i FORCE INDEX (number) WHERE i.number = c.c0) IS NULL
	AND (SELECT 1 FROM {parted statuses} s FORCE INDEX (message) WHERE s.message_number = c.c0 LIMIT 1) IS NULL`

	// readSQL uses the primary key of one partition, and looks for each number in the unique key.
	readSQL = `
SELECT m.number, (SELECT 1 FROM {message ids} i FORCE INDEX (number) WHERE i.number = m.number) IS NULL
FROM {parted messages} PARTITION ({part}) m FORCE INDEX (PRIMARY) WHERE m.number > ?1 ORDER BY m.number LIMIT ?2`
)

// raiseSQL is rolled back: the counter keeps what it was raised to. No ID is X'FF'.
const raiseSQL = `INSERT INTO {message ids} (id, namespace, number) VALUES (X'FF', X'FF', ?1)`

// partitionsOfSQL reads the dictionary, which has one row without a name for a table that is not partitioned.
const partitionsOfSQL = `
SELECT partition_name, partition_description FROM information_schema.partitions
WHERE table_schema = COALESCE(?1, DATABASE()) AND table_name = ?2 AND partition_name IS NOT NULL ORDER BY partition_ordinal_position`

// part is a partition: the numbers from those of the part before it up to below, exclusively.
type part struct {
	name        string
	from, below int64
}

// partsOf returns the partitions of a table in the order of their numbers.
func (s *Store) partsOf(ctx context.Context, pool gorm.ConnPool, table string) ([]part, error) {
	schema, name := s.table(s.own(table))
	var last int64
	return store.Query(ctx, pool, partitionsOfSQL, func(rows *sql.Rows, p *part) error {
		err := rows.Scan(&p.name, &p.below)
		p.from, last = last, p.below
		return err
	}, schema, name)
}

// own returns a statement with names of the inbox. {own x} is its table or trigger with the name x.
func (s *Store) own(statement string) string {
	prefix := strings.TrimSuffix(s.Text("{plain messages}"), `messages"`)
	for {
		before, rest, found := strings.Cut(statement, "{own ")
		if !found {
			return s.Text(statement)
		}
		name, after, _ := strings.Cut(rest, "}")
		statement = before + prefix + name + `"` + after
	}
}

func ofPart(statement, part string) string { return strings.ReplaceAll(statement, "{part}", part) }

// session is a connection of its own for changes of the tables.
type session struct {
	*Store
	ctx  context.Context
	pool gorm.ConnPool
}

var errOther = errors.New("another call changes the layout")

// aloneSQL takes a lock of the whole server, which its session holds.
const (
	aloneSQL   = `SELECT GET_LOCK(CONCAT('inbox ', LEFT(SHA2(CONCAT(COALESCE(?1, DATABASE()), '.', ?2), 256), 32)), 0) = 1`
	releaseSQL = `SELECT RELEASE_ALL_LOCKS()`
)

// longestIdle is after what time the server ends a session whose client has vanished or stands still: between two
// attempts it is idle for as long as patience. While it has locked tables, it is ended sooner.
const (
	longestIdle       = `SET SESSION wait_timeout = 30`
	longestIdleLocked = `SET SESSION wait_timeout = 5`
)

// alone runs work on a connection of its own, which is closed afterwards: nothing that it has set or locked outlives
// it. Its changes give up after a second if they do not get their locks, because all that comes later waits for them.
//
// One session does this at a time, also one whose client has gone: the server finishes its statement.
func (s *Store) alone(ctx context.Context, work func(session) error) error {
	pool, err := s.DB.DB()
	if err != nil {
		return err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	own := session{s, ctx, mysqldialect.Translating(conn)}
	defer func() {
		if ctx.Err() == nil {
			_, _ = store.Query(ctx, own.pool, releaseSQL, store.Value[any])
		}
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}()
	schema, name := s.table(s.Text("{plain messages}"))
	got, err := store.Query(ctx, own.pool, aloneSQL, store.Value[bool], schema, name)
	if err == nil && !got[0] {
		err = errOther
	}
	if err == nil {
		err = own.exec(`SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED`, `SET SESSION lock_wait_timeout = 1`,
			`SET SESSION innodb_lock_wait_timeout = 1`, `SET SESSION net_read_timeout = 10`, `SET SESSION net_write_timeout = 10`,
			longestIdle)
	}
	if err == nil {
		err = work(own)
	}
	return err
}

// exec runs statements one after the other.
func (s session) exec(statements ...string) error {
	for _, statement := range statements {
		if _, err := store.Exec(s.ctx, s.pool, s.own(statement)); err != nil {
			first, _, _ := strings.Cut(strings.TrimSpace(statement), "\n")
			return fmt.Errorf("%s: %w", first, err)
		}
	}
	return nil
}

// within runs work in a transaction, and again after a conflict with a concurrent one. Before that it lets others go
// on for as long as they have waited for it.
func (s session) within(work func() error) error {
	for try := 1; ; try++ {
		err := s.exec(`START TRANSACTION`)
		if err == nil {
			err = work()
		}
		if err == nil {
			return s.exec(`COMMIT`)
		}
		waits := errors.Is(busy(err), store.ErrPartitionsBusy)
		again := waits || try < collidingTries && store.IsUniqueViolation(err)
		if undone := s.exec(`ROLLBACK`); undone != nil || !again || waits && !routine.Sleep(s.ctx, time.Second) {
			return store.WithContextError(s.ctx, err)
		}
	}
}

func (s session) numbers(statement string, args ...any) ([]int64, error) {
	return store.Query(s.ctx, s.pool, s.Text(statement), store.Value[int64], args...)
}

// age runs newestSQL or oldestSQL. It returns the zero time for an empty partition.
func (s *Store) age(ctx context.Context, pool gorm.ConnPool, statement, part string) (time.Time, error) {
	found, err := store.Query(ctx, pool, s.Text(ofPart(statement, part)), store.Value[store.Stamp])
	if err != nil || len(found) == 0 {
		return time.Time{}, err
	}
	return found[0].Time, nil
}

// expiredParts returns the first partitions after that of what is kept, up to the last one of which all messages are
// older than before and that takes no new ones. Younger messages in those before it have the time of a clock that was
// wrong, and are kept.
func (s *Store) expiredParts(ctx context.Context, pool gorm.ConnPool, before time.Time) (
	expired, rest []part, err error,
) {
	parts, err := s.partsOf(ctx, pool, "{parted messages}")
	if err != nil || len(parts) < 2 {
		return nil, nil, err
	}
	parts = parts[1:]
	n := 0
	for i, p := range parts[:len(parts)-1] {
		newest, err := s.age(ctx, pool, newestSQL, p.name)
		if err != nil {
			return nil, nil, err
		}
		if newest.Before(before) && (n == i || !newest.IsZero()) {
			n = i + 1
		}
	}
	return parts[:n], parts[n:], nil
}

// walkBound returns below which number a cleanup reads messages. Rows of a partition that will be dropped are left
// alone until all of them have expired, so that each of them is read once. While as many partitions stay as may be, all
// are read: the last one takes what comes, and would never expire.
func (s *Store) walkBound(ctx context.Context, req store.CleanupRequest) (int64, error) {
	if !s.partitioned.Load() {
		return math.MaxInt64, nil
	}
	expired, rest, err := s.expiredParts(ctx, s.Pool(ctx), req.Earliest())
	if err != nil || len(rest) == 0 {
		return math.MaxInt64, err
	}
	s.droppable.Store(&[2]int64{rest[0].from, rest[0].from})
	if len(expired) > 0 {
		s.droppable.Store(&[2]int64{expired[0].from, rest[0].from})
	}
	if req.Live || len(expired)+len(rest) >= maxSlots {
		return math.MaxInt64, nil
	}
	return rest[0].from, nil
}

// goesWithPartition reports whether a message's rows are dropped with its partition, once it is forgotten.
func (s *Store) goesWithPartition(number int64) bool {
	among := s.droppable.Load()
	return s.partitioned.Load() && among != nil && number >= among[0] && number < among[1]
}

// deleteWhole deletes messages whose statuses are deleted. With partitions it forgets their IDs, and deletes the rows
// of those alone that are in no partition that will be dropped.
func (s *Store) deleteWhole(ctx context.Context, pool gorm.ConnPool, numbers []int64) (int64, error) {
	if !s.partitioned.Load() {
		return execAll(ctx, s, pool, deleteMessagesSQL, listOf(numbers))
	}
	forgotten, err := execAll(ctx, s, pool, forgetSQL, listOf(numbers))
	if err == nil {
		_, err = s.thin(ctx, pool, slices.DeleteFunc(slices.Clone(numbers), s.goesWithPartition))
	}
	return forgotten, err
}

// thin deletes what was forgotten of messages.
func (s *Store) thin(ctx context.Context, pool gorm.ConnPool, numbers []int64) (int64, error) {
	if _, err := execAll(ctx, s, pool, thinStatusesSQL, listOf(numbers)); err != nil {
		return 0, err
	}
	empty, err := queryAll(ctx, s, pool, emptySQL, store.Value[int64], listOf(numbers))
	if err != nil {
		return 0, err
	}
	return execAll(ctx, s, pool, deleteMessagesSQL, listOf(empty))
}

// KeepPartitions begins a new partition and drops those that have expired. While another session changes the layout, it
// does nothing.
func (s *Store) KeepPartitions(ctx context.Context, req store.PartitionsRequest) (r store.PartitionsResult, err error) {
	if partitioned, err := s.Partitioned(ctx); err != nil || !partitioned {
		return r, err
	}
	err = s.alone(ctx, func(own session) error { return own.keep(req, &r) })
	if errors.Is(err, errOther) {
		return r, nil
	}
	return r, err
}

func (s session) keep(req store.PartitionsRequest, r *store.PartitionsResult) error {
	began, err := s.beginPart(req)
	if began {
		r.Began = 1
	}
	errs := []error{base.Doing("begin a partition", err), base.Doing("drop what was a partition", s.dropSide(gone...)),
		base.Doing("merge what is kept", s.endMerge())}
	err = nil
	for after := int64(math.MinInt64); after != 0 && err == nil; {
		after, err = s.thinPart("kept", after, req.Limit, r)
	}
	errs = append(errs, base.Doing("delete what was kept", err))
	expired, _, err := s.expiredParts(s.ctx, s.pool, req.Before)
	errs = append(errs, base.Doing("find expired partitions", err))
	for i, p := range expired {
		if i+1 < len(expired) && p.below <= req.After {
			r.Crowded++ // an earlier call has read all of it
			continue
		}
		if err = s.endPart(p, req, r); err != nil {
			errs = append(errs, fmt.Errorf("drop partition %s: %w", p.name, err))
		}
		if r.Next != 0 || errors.Is(err, store.ErrPartitionsBusy) || s.ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

var errCrowded = errors.New("too many messages of the partition stay")

// endPart drops what was forgotten of an expired partition. Where too many messages stay, it deletes rows.
func (s session) endPart(p part, req store.PartitionsRequest, r *store.PartitionsResult) error {
	if req.After < p.from { // otherwise an earlier call has found it crowded
		err := s.drop(p, req.Before, r)
		if !errors.Is(err, errCrowded) {
			return err
		}
	}
	var err error
	r.Crowded++
	r.Next, err = s.thinPart(p.name, req.After, req.Limit, r)
	return err
}

// thinPart deletes what was forgotten from a partition, of at most so many messages after a number. It returns the last
// number that it has read, or 0 at the end.
func (s session) thinPart(name string, after int64, limit int, r *store.PartitionsResult) (next int64, err error) {
	limit = min(limit, maxKept) // triggers of each row take their time
	err = s.within(func() error {
		var numbers []int64
		read, err := store.Query(s.ctx, s.pool, s.Text(ofPart(readSQL, name)), func(rows *sql.Rows, number *int64) error {
			var forgotten bool
			err := rows.Scan(number, &forgotten)
			if forgotten {
				numbers = append(numbers, *number)
			}
			return err
		}, after, limit)
		if err != nil {
			return err
		}
		if next = 0; len(read) == limit { // there may be more
			next = read[limit-1]
		}
		deleted, err := s.thin(s.ctx, s.pool, numbers)
		r.Deleted += deleted
		return err
	})
	return next, err
}

// gone are the tables with which a partition is exchanged: those of the messages and of their statuses.
var gone = []string{"{own messages_gone}", "{own handler_statuses_gone}"}

// drop drops a partition but for what stays. It exchanges one with many rows for tables that have that, deletes what
// was forgotten in one with few, and then merges it. An earlier call may have been interrupted between the two.
func (s session) drop(p part, before time.Time, r *store.PartitionsResult) error {
	few, err := s.numbers(ofPart(fewMessagesSQL, p.name), fewRows)
	if err != nil {
		return err
	}
	dropped := few[0] == 0
	if dropped {
		var moved int
		moved, err = s.exchange(p, before)
		r.Moved += moved
	} else {
		for after, more := p.from-1, true; more && err == nil; more = after != 0 {
			after, err = s.thinPart(p.name, after, maxKept, r)
		}
	}
	if err != nil {
		return err
	}
	merged, err := s.merge(p)
	if dropped || merged {
		r.Dropped++
	}
	return err
}

// known returns the messages of a partition that are known, or errCrowded.
func (s session) known(p part) ([]int64, error) {
	known, err := s.numbers(rememberedSQL, p.from, p.below, maxKept+1)
	if err != nil {
		return nil, err
	}
	if len(known) > maxKept {
		return nil, errCrowded
	}
	if size, err := s.bytes(known); err != nil {
		return nil, busy(err)
	} else if size > maxKeptBytes {
		return nil, errCrowded
	}
	return known, nil
}

// bytes returns how large messages are.
func (s session) bytes(numbers []int64) (size int64, err error) {
	sizes, err := queryAll(s.ctx, s.Store, s.pool, bytesSQL, store.Value[int64], listOf(numbers))
	for _, each := range sizes {
		size += each
	}
	return size, err
}

// exchange copies what stays: what is known, and what is open. The statuses go first: if it is interrupted between the
// two, messages without statuses are left, which are forgotten. The next cleanup drops them.
//
// Nothing is added to a message that is forgotten: who adds something locks its ID.
func (s session) exchange(p part, before time.Time) (moved int, err error) {
	if _, err = s.known(p); err != nil {
		return 0, err
	}
	// This waits for all transactions that have accepted something. What is accepted from here on has a number of a later
	// partition, or the time of now: after a failover the new server's counter may be behind.
	if err = busy(s.exec(longestIdleLocked, `LOCK TABLES {message ids} READ`, `UNLOCK TABLES`, longestIdle)); err != nil {
		return 0, err
	}
	known, err := s.known(p)
	if err != nil {
		return 0, err
	}
	open, err := s.numbers(ofPart(openSQL, p.name), maxKept+1)
	if err == nil && len(open) > maxKept {
		err = errCrowded
	}
	if err != nil {
		return 0, err
	}
	var columns [2]string
	for i, table := range partedTables {
		text, err := s.createText(table)
		if err == nil {
			err = s.exec(`CREATE TABLE ` + gone[i] + text.plain)
		}
		if err == nil {
			columns[i], err = s.columns(table)
		}
		if err != nil {
			return 0, err
		}
	}
	err = busy(s.exec(longestIdleLocked,
		`LOCK TABLES {parted messages} WRITE, {parted statuses} WRITE, {message ids} WRITE, `+strings.Join(gone, " WRITE, ")+` WRITE`))
	if err == nil {
		moved, err = s.replace(p, known, open, before, columns)
		err = errors.Join(err, s.exec(`UNLOCK TABLES`))
	}
	if err = errors.Join(err, s.exec(longestIdle)); err != nil && !errors.Is(err, errCrowded) {
		return moved, err
	}
	if undropped := s.dropSide(gone...); undropped != nil {
		return moved, undropped
	}
	return moved, err
}

// replace does what exchange does while the tables are locked. What is known is looked up row by row: a range of the
// IDs would have all those that were forgotten a moment ago.
func (s session) replace(p part, known, open []int64, before time.Time, columns [2]string) (moved int, err error) {
	// This changes nothing, and opens the table again: MariaDB finds a difference of tables with generated columns if the
	// one at hand was last opened under an alias.
	if err := s.exec(`ALTER TABLE {parted statuses} COMMENT='` + sideComment + `'`); err != nil {
		return 0, err
	}
	late, err := s.numbers(ofPart(lateSQL, p.name), before, maxKept+1)
	if err != nil {
		return 0, err
	}
	staying, err := queryAll(s.ctx, s.Store, s.pool, stillKnownSQL, store.Value[int64], listOf(known))
	if err != nil {
		return 0, err
	}
	staying = slices.Concat(staying, late, open)
	slices.Sort(staying)
	if staying = slices.Compact(staying); len(staying) > maxKept {
		return 0, errCrowded
	}
	if _, err = execAll(s.ctx, s.Store, s.pool, rememberSQL, listOf(staying)); err != nil {
		return 0, err
	}
	for i, table := range partedTables {
		copied := s.own(fmt.Sprintf(copySQL, gone[i], columns[i], table, numberOf[i]))
		if _, err := execAll(s.ctx, s.Store, s.pool, copied, listOf(staying)); err != nil {
			return 0, err
		}
	}
	for _, i := range []int{1, 0} {
		err := s.exec(`ALTER TABLE ` + partedTables[i] + ` EXCHANGE PARTITION ` + p.name + ` WITH TABLE ` + gone[i] + ` WITHOUT VALIDATION`)
		if number, _, _ := mysqldialect.Code(err); number == differentTables {
			err = fmt.Errorf("%w: %w: repair it with ALTER TABLE … FORCE", errCrowded, err)
		}
		if err != nil {
			return 0, err
		}
	}
	return len(staying), nil
}

// differentTables is MySQL's error for a table and a partition that are not alike in its dictionary: a column was added
// without building the table anew.
const differentTables = 1731

// busy returns store.ErrPartitionsBusy for a change of tables that has not got its locks.
func busy(err error) error {
	if number, _, _ := mysqldialect.Code(err); number == mysqldialect.LockWaitTimeout || store.IsSerialization(err) {
		return fmt.Errorf("%w: %w", store.ErrPartitionsBusy, err)
	}
	return err
}

// fewRows bounds the messages of a partition from which rows are deleted, and of two that are merged. fewStatuses
// bounds the statuses of the two.
const (
	fewRows     = 2 * maxKept
	fewStatuses = 10 * fewRows
)

// These statements count also what was forgotten. They read no more rows than they must.
const (
	fewMessagesSQL = `SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM {parted messages} PARTITION ({part}) LIMIT ?1) m) < ?1`
	fewSQL         = fewMessagesSQL + `
	AND (SELECT COUNT(*) FROM (SELECT 1 FROM {parted statuses} PARTITION ({part}) LIMIT ?2) s) < ?2`
)

// merge makes a partition of which only what stays is left a part of the one before it, if both together are few rows:
// they are copied. The partitions of messages say which there are, so they are last.
func (s session) merge(p part) (merged bool, err error) {
	parts, err := s.partsOf(s.ctx, s.pool, "{parted messages}")
	at := slices.IndexFunc(parts, func(other part) bool { return other.name == p.name })
	if err != nil || at < 1 {
		return false, err
	}
	before := parts[at-1]
	few, err := s.numbers(ofPart(fewSQL, before.name+", "+p.name), fewRows, fewStatuses)
	if err != nil || few[0] == 0 {
		return false, err
	}
	known, err := s.numbers(rememberedSQL, before.from, p.below, fewRows)
	if err != nil {
		return false, err
	}
	if size, err := s.bytes(known); err != nil || size > maxKeptBytes {
		return false, err
	}
	for _, table := range []string{"{parted statuses}", "{parted messages}"} {
		if err := s.mergeInto(table, before, p); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (s session) mergeInto(table string, before, p part) error {
	return busy(s.exec(fmt.Sprintf(`ALTER TABLE %s REORGANIZE PARTITION %s, %s INTO (PARTITION %[2]s VALUES LESS THAN (%[4]d))`,
		table, before.name, p.name, p.below)))
}

// endMerge merges partitions of messages whose statuses an interrupted call has merged.
func (s session) endMerge() error {
	messages, err := s.partsOf(s.ctx, s.pool, "{parted messages}")
	if err != nil {
		return err
	}
	statuses, err := s.partsOf(s.ctx, s.pool, "{parted statuses}")
	for i, p := range messages {
		if err == nil && i > 0 && !slices.ContainsFunc(statuses, func(other part) bool { return other.name == p.name }) {
			err = s.mergeInto("{parted messages}", messages[i-1], p)
			break // a call is interrupted at one
		}
	}
	return err
}

// beginPart makes the next partition and then raises the counter to it, if the last one has rows for long enough. If
// the last one is empty, an earlier call may have been interrupted between the two.
func (s session) beginPart(req store.PartitionsRequest) (bool, error) {
	parts, err := s.partsOf(s.ctx, s.pool, "{parted messages}")
	if err != nil || req.Every <= 0 || len(parts) == 0 {
		return false, err
	}
	last := parts[len(parts)-1]
	oldest, err := s.age(s.ctx, s.pool, oldestSQL, last.name)
	switch {
	case err != nil:
		return false, err
	case oldest.IsZero():
		return false, s.raise(last.from)
	case req.Now.Sub(oldest) < req.Every, len(parts) > maxSlots: // the first one is not of a time
		return false, nil
	}
	for _, table := range []string{"{parted statuses}", "{parted messages}"} {
		parts, err := s.partsOf(s.ctx, s.pool, table)
		if err == nil && parts[len(parts)-1].below == last.below {
			err = busy(s.exec(`ALTER TABLE ` + table + ` ADD PARTITION (` + definition(last.below, last.below+slotSize) + `)`))
		}
		if err != nil {
			return false, err
		}
	}
	return true, s.raise(last.below)
}

func definition(from, below int64) string {
	return `PARTITION p` + strconv.FormatInt(from/slotSize, 10) + ` VALUES LESS THAN (` + strconv.FormatInt(below, 10) + `)`
}

// raise makes the next message's number higher than a number.
func (s session) raise(number int64) error {
	err := s.exec(`START TRANSACTION`)
	if err == nil {
		_, err = store.Exec(s.ctx, s.pool, s.Text(raiseSQL), number)
	}
	if store.IsUniqueViolation(err) { // a message has this number
		err = nil
	}
	return errors.Join(busy(err), s.exec(`ROLLBACK`))
}
