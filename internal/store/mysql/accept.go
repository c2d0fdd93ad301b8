package mysql

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
	"github.com/gorm-inbox/inbox/models"
)

// chunks are the possible numbers of rows of a statement. A few fixed numbers mean that only a few statements are ever
// prepared.
var chunks = []int{256, 64, 16, 4, 1}

// maxStatement bounds the bytes of a statement's values: max_allowed_packet is 16 MiB by default on MariaDB. A message
// that is larger has a statement of its own.
const maxStatement = 4 << 20

// insertMessagesSQL inserts messages. The unique key on (id, namespace) refuses those that are known.
func insertMessagesSQL(rows int) string {
	return `INSERT INTO {messages} ({number,}id, namespace, transport_name, type, source, content, content_type, serialized_properties, ordering_key, received_at)
VALUES ` + strings.Repeat(`, ({its number,}?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, rows)[2:]
}

// insertIDsSQL is first in the partitioned layout. The primary key refuses messages that are known.
func insertIDsSQL(rows int) string {
	return `INSERT INTO {message ids} (id, namespace) VALUES ` + strings.Repeat(`, (?, ?)`, rows)[2:]
}

// insertStatusesSQL inserts statuses in the order of acceptance, which is that of their sequence.
func insertStatusesSQL(rows int) string {
	return `INSERT INTO {statuses} (id, message_number, message_bytes, message_id, handler_key, created_at, lane_handler, lane_key, processing_started_at, worker_id, next_attempt_at)
VALUES ` + strings.Repeat(`, (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, rows)[2:]
}

const (
	// lockMessagesSQL and knownSQL lock known messages in the order of all accepts: two of them that share messages wait
	// for each other instead of deadlocking, if both walk the same index.
	lockMessagesSQL = numbersSQL + ` FOR UPDATE`

	knownSQL = `
SELECT m.id, m.namespace, m.number, m.type, m.source, m.received_at, m.content, LENGTH(m.content) + LENGTH(m.serialized_properties),
	` + base.SealedTerm + `
FROM ({rows ?1}) c STRAIGHT_JOIN {these messages} FOR UPDATE`

	numbersSQL = `SELECT m.id, m.namespace, m.number FROM ` + theseMessages

	// theseMessages uses the unique key on (id, namespace), in the order of the rows. Of a list of pairs MariaDB would use
	// the first column alone, and wait for the same ID in other namespaces.
	theseMessages = `({rows ?1}) c STRAIGHT_JOIN {these ids}`

	// acceptKeysSQL uses the unique key on (message_number, handler_key), which has all that it reads. It locks these
	// entries, not the rows, so that a snapshot of the caller's transaction does not hide what has been committed since.
	acceptKeysSQL = `
SELECT s.message_number, s.handler_key FROM ({rows ?1}) c STRAIGHT_JOIN {these keys} LOCK IN SHARE MODE`

	// acceptRejectedSQL inserts one row and finds a conflict by the unique key on the coordinates.
	acceptRejectedSQL = `
INSERT INTO {rejected} (id, channel, topic, "partition", record_offset, record_timestamp, "key", "value", headers, reason, rejected_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, COALESCE({latest}, ?11))
ON DUPLICATE KEY UPDATE id = id`

	// clockSQL reads no table.
	clockSQL = `SELECT COALESCE({latest}, CAST(?1 AS DATETIME(6)))`

	// anyKnownSQL reads the clock, and by the unique key on (id, namespace) whether a message is known.
	anyKnownSQL = `
SELECT COALESCE({latest}, CAST(?2 AS DATETIME(6))), EXISTS (SELECT 1 FROM ` + theseMessages + `)`
)

// errKnown means that a message of a batch is known, which the batch was not expected to have.
var errKnown = errors.New("a message is known")

// Accept first takes all messages for new, as they mostly are. It looks which are known if a read finds one, or if an
// insert does, after which it begins again. The read is not only to save that:
//
//  1. One accept locks its known messages.
//  2. Another one, which takes all for new, inserts a new message, and waits to insert one of the locked ones.
//  3. The first one inserts the new message, too: a deadlock.
//
// The known message may be committed after that read. So many accepts at once may collide more often than others do.
func (s *Store) Accept(ctx context.Context, batch store.AcceptBatch) ([]store.Accepted, error) {
	accepted, err := base.AcceptRetrying(ctx, s.Transaction, &accept{Store: s, newOnly: true}, batch, nil)
	for try := 1; errors.Is(err, errKnown) || store.Collided(err) && try < collidingTries && ctx.Err() == nil; try++ {
		accepted, err = base.AcceptRetrying(ctx, s.Transaction, &accept{Store: s}, batch, nil)
	}
	return accepted, err
}

// AcceptTx looks at the caller's snapshot once, see InsertNew.
func (s *Store) AcceptTx(ctx context.Context, tx *gorm.DB, batch store.AcceptBatch) ([]store.Accepted, error) {
	var results []store.Accepted
	err := s.joined(ctx, tx, func(pool gorm.ConnPool) (err error) {
		results, err = base.Accept(ctx, pool, &accept{Store: s, joined: true}, batch)
		return err
	})
	return results, base.Doing("accept", err)
}

// accept is a store during one accept. It reads the clock once: what is claimed for the worker was received when its
// statuses were created.
type accept struct {
	*Store
	newOnly bool // fails with errKnown if a message is known
	joined  bool // in the caller's transaction
	looked  bool // the first look at the caller's snapshot is over
	at      time.Time
}

func (a *accept) clock(ctx context.Context, pool gorm.ConnPool, now time.Time) (time.Time, error) {
	var err error
	if a.at.IsZero() {
		a.at, err = a.ClockIn(ctx, pool, now)
	}
	return a.at, err
}

func (s *Store) InsertNew(ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage,
	statuses []base.StatusRow, worker string, now time.Time,
) (inserted []base.StoredNumber, claimedAt time.Time, err error) {
	return (&accept{Store: s, joined: true}).InsertNew(ctx, pool, messages, statuses, worker, now)
}

// InsertNew locks the messages that are known and inserts the others. If another accept has inserted one in between, it
// goes on with those that are left.
//
// The caller's own transaction is REPEATABLE READ by default. Locking what is not there would then lock the gap, and
// two such transactions would wait for each other's gaps. So it first reads without a lock, and locks only after an
// insert was refused of what its snapshot does not show, or a lock did not find what the snapshot shows.
func (a *accept) InsertNew(ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage, _ []base.StatusRow,
	_ string, now time.Time,
) (inserted []base.StoredNumber, claimedAt time.Time, err error) {
	if a.newOnly {
		// A batch that was delivered before has a known message among its first ones.
		some := identities(messages[:min(len(messages), longestList)])
		known, err := store.Query(ctx, pool, a.Text(anyKnownSQL), func(rows *sql.Rows, known *bool) error {
			var at store.Stamp
			err := rows.Scan(&at, known)
			a.at = at.Time
			return err
		}, some, now)
		if err != nil {
			return nil, time.Time{}, err
		}
		a.newOnly = !known[0]
	}
	at, err := a.clock(ctx, pool, now)
	if err != nil {
		return nil, time.Time{}, err
	}
	var ours []*store.NewMessage
	for try, vanished := 1, a.looked; ; try++ {
		fresh := messages
		if !a.newOnly {
			read := lockMessagesSQL
			if a.joined && !a.looked {
				read = numbersSQL
			}
			a.looked = true
			if fresh, err = a.unknown(ctx, pool, read, messages); err != nil {
				return nil, time.Time{}, err
			}
		}
		n, err := a.insert(ctx, pool, fresh, at)
		ours, messages = append(ours, fresh[:n]...), fresh[n:]
		switch {
		case err == nil:
			read := numbersSQL
			if vanished { // a message since it was read: the caller's snapshot may still show it
				read = lockMessagesSQL
			}
			inserted, err = a.numbers(ctx, pool, read, ours)
			return inserted, time.Time{}, err
		case !store.IsUniqueViolation(err) || try == collidingTries:
			return nil, time.Time{}, err
		case a.newOnly:
			return nil, time.Time{}, errKnown
		}
	}
}

// unknown reads the messages that are known and returns the others.
func (a *accept) unknown(ctx context.Context, pool gorm.ConnPool, read string, messages []*store.NewMessage) (
	[]*store.NewMessage, error,
) {
	known, err := a.numbers(ctx, pool, read, messages)
	is := make(map[base.Identity]bool, len(known))
	for _, k := range known {
		is[k.Identity] = true
	}
	return slices.DeleteFunc(slices.Clone(messages), func(m *store.NewMessage) bool { return is[base.IdentityOf(m)] }), err
}

// insert returns how many of the messages it has inserted, also with an error.
func (s *Store) insert(ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage, received time.Time) (
	done int, err error,
) {
	for done < len(messages) {
		left := messages[done:]
		fits, size := 0, 0
		for fits < len(left) && (fits == 0 || size+left[fits].Size() <= maxStatement) {
			size += left[fits].Size()
			fits++
		}
		n := chunks[slices.IndexFunc(chunks, func(n int) bool { return n <= fits })]
		args, text := make([]any, 0, n*12), s.Text(insertMessagesSQL(n))
		partitioned := strings.Count(text, "?") > n*10 // by the text: the layout may change any time
		for _, m := range left[:n] {
			if partitioned {
				args = append(args, m.ID, m.Namespace)
			}
			args = append(args, m.ID, m.Namespace, m.TransportName, m.Type, m.Source, base.Filled(m.Content), m.ContentType,
				m.SerializedProperties, m.OrderingKey, mysqldialect.Time(received))
		}
		write := func() error {
			_, err := store.Exec(ctx, pool, text, args...)
			return err
		}
		if partitioned {
			write = func() error { return s.insertWithIDs(ctx, pool, left[:n], text, args) }
		}
		if err := write(); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// insertWithIDs inserts messages in the partitioned layout, all or none: a caller that commits its transaction in spite
// of a failure would leave IDs without messages, which could never be accepted again.
func (s *Store) insertWithIDs(ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage, text string,
	args []any,
) error {
	ids := make([]any, 0, len(messages)*2)
	for _, m := range messages {
		ids = append(ids, m.ID, m.Namespace)
	}
	return allOrNothing(ctx, pool, func() error {
		_, err := store.Exec(ctx, pool, s.Text(insertIDsSQL(len(messages))), ids...)
		if err == nil {
			_, err = store.Exec(ctx, pool, text, args...)
		}
		return err
	})
}

// allOrNothing takes back what work has done in a transaction if it fails.
func allOrNothing(ctx context.Context, pool gorm.ConnPool, work func() error) error {
	if _, err := store.Exec(ctx, pool, `SAVEPOINT inbox_part`); err != nil {
		return err
	}
	err := work()
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), firstRead)
		defer cancel()
		// If this fails, too, the server has rolled back the whole transaction, or nothing more may run in it.
		_, _ = store.Exec(ctx, pool, `ROLLBACK TO SAVEPOINT inbox_part`)
	}
	return err
}

func (s *Store) numbers(ctx context.Context, pool gorm.ConnPool, statement string, messages []*store.NewMessage) (
	[]base.StoredNumber, error,
) {
	return queryAll(ctx, s, pool, statement, scanNumber, identities(messages))
}

func scanNumber(rows *sql.Rows, n *base.StoredNumber) error {
	return rows.Scan(&n.ID, &n.Namespace, &n.Number)
}

func identities(messages []*store.NewMessage) mysqldialect.Rows {
	pairs := make(mysqldialect.Rows, len(messages))
	for i, m := range messages {
		pairs[i] = []any{m.ID, m.Namespace}
	}
	return pairs
}

// InsertsStatuses returns false: the statuses are inserted once the numbers of their messages are known.
func (s *Store) InsertsStatuses() bool { return false }

func (s *Store) LockKnown(ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage, now time.Time) (
	known []base.Known, err error,
) {
	at, err := s.ClockIn(ctx, pool, now)
	if err != nil {
		return nil, err
	}
	of := make(map[base.Identity]*store.NewMessage, len(messages))
	for _, m := range messages {
		of[base.IdentityOf(m)] = m
	}
	return queryAll(ctx, s, pool, knownSQL, func(rows *sql.Rows, k *base.Known) error {
		var received store.Stamp
		var content sql.RawBytes // compared here and not kept
		var sealed sql.NullString
		if err := rows.Scan(&k.ID, &k.Namespace, &k.Number, &k.MessageType, &k.Source, &received, &content,
			&k.MessageBytes, &sealed); err != nil {
			return err
		}
		k.ReceivedAt, k.Now = received.Time, at
		m := of[k.Identity]
		k.ContentDiffers = base.ContentDiffers(m, m.Differs(content), sealed.String)
		return nil
	}, identities(messages))
}

func (s *Store) InsertStatuses(ctx context.Context, pool gorm.ConnPool, statuses []base.StatusRow, worker string,
	now time.Time,
) (added []string, claimedAt time.Time, err error) {
	return (&accept{Store: s}).InsertStatuses(ctx, pool, statuses, worker, now)
}

func (a *accept) InsertStatuses(ctx context.Context, pool gorm.ConnPool, statuses []base.StatusRow, worker string,
	now time.Time,
) (added []string, claimedAt time.Time, err error) {
	created, err := a.clock(ctx, pool, now)
	if err != nil {
		return nil, time.Time{}, err
	}
	claims := worker != "" && slices.ContainsFunc(statuses, func(row base.StatusRow) bool { return row.Claim })
	if claims {
		if claims, err = a.lockWorker(ctx, pool, worker, true); err != nil {
			return nil, time.Time{}, err
		}
	}
	for left := statuses; len(left) > 0; {
		n := chunks[slices.IndexFunc(chunks, func(n int) bool { return n <= len(left) })]
		args := make([]any, 0, n*11)
		for _, row := range left[:n] {
			values := []any{row.ID, row.Number, row.MessageBytes, row.MessageID, row.HandlerKey, mysqldialect.Time(created),
				nil, nil, nil, nil, nil}
			if row.Lane != nil {
				values[6], values[7] = row.Lane.Handler, row.Lane.Key
			}
			if claims && row.Claim {
				values[8], values[9] = mysqldialect.Time(now), worker
			}
			if due := row.FirstDue(created); due != nil {
				values[10] = mysqldialect.Time(*due)
			}
			args, added = append(args, values...), append(added, row.ID)
		}
		if _, err := store.Exec(ctx, pool, a.Text(insertStatusesSQL(n)), args...); err != nil {
			return nil, time.Time{}, err
		}
		left = left[n:]
	}
	if claims {
		claimedAt = base.StoredTime(created)
	}
	return added, claimedAt, nil
}

func (s *Store) InsertRejected(ctx context.Context, pool gorm.ConnPool, rejected []models.RejectedMessage) error {
	for _, r := range rejected {
		_, err := store.Exec(ctx, pool, s.Text(acceptRejectedSQL), r.ID, r.Channel, r.Topic, r.Partition, r.Offset,
			r.Timestamp, r.Key, r.Value, r.Headers, r.Reason, r.RejectedAt)
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) Clock(ctx context.Context, now time.Time) (time.Time, error) {
	return s.ClockIn(ctx, s.Pool(ctx), now)
}

func (s *Store) ClockIn(ctx context.Context, pool gorm.ConnPool, now time.Time) (time.Time, error) {
	times, err := store.Query(ctx, pool, s.Text(clockSQL), store.Value[store.Stamp], now)
	if err != nil {
		return time.Time{}, base.Doing("read the database's clock", err)
	}
	return times[0].Time, nil
}
