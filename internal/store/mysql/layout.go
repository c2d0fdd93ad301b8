package mysql

import (
	"context"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// This file has what differs between the two layouts of the tables in statements that are the same otherwise. In the
// plain layout the unique key by_id recognises duplicates. In the other one {messages} and {statuses} are partitioned
// by ranges of the message's number. A unique key of theirs must contain the number, so two slim tables have what must
// be unique at all times: {message ids} has each known ID with its message's number, and {lane holders} each lane with
// a claimed row, which triggers keep. Partitioned tables have no foreign keys: whoever deletes a message deletes its
// statuses first.
//
// The partitioned tables have other names, and the plain tables' names are then those of views for people. A statement
// that was made for the other layout fails: a view of a temporary table can be neither changed nor searched by a key
// that is forced, and a lock of its rows changes nothing. Follow makes all later statements for the layout there is.

// plainWords are the parts of statements in the plain layout.
var plainWords = []string{
	"{these ids}", `{messages} m FORCE INDEX (by_id) ON m.id = c.c0 AND m.namespace = c.c1`,
	"{these messages}", `{messages} m FORCE INDEX (by_id) ON m.id = c.c0 AND m.namespace = c.c1`,
	"{these keys}", `{statuses} s FORCE INDEX (message) ON s.message_number = c.c0 WHERE s.handler_key IN ({list ?2})`,
	"{numbered}", `{messages} m FORCE INDEX (PRIMARY)`, "{number}", `m.number`, "{remembered}", `true`,
	"{number,}", ``, "{its number,}", ``,
}

// partitionedWords are the parts of statements in the partitioned layout. A message is remembered as long as its ID is
// known: cleanup forgets it first, and its partition goes later. The sub-select reads the unique key on numbers, row by
// row. Each pair of message and handler key is looked up: in partitions, MySQL would wait for the entry after those of
// a message.
var partitionedWords = []string{
	"{messages}", "{parted messages}", "{statuses}", "{parted statuses}", "{ids}", "{message ids}",
	"{these ids}", `{message ids} m FORCE INDEX (PRIMARY) ON m.id = c.c0 AND m.namespace = c.c1`,
	"{these messages}", `{message ids} i FORCE INDEX (PRIMARY) ON i.id = c.c0 AND i.namespace = c.c1
	STRAIGHT_JOIN {messages} m FORCE INDEX (PRIMARY) ON m.number = i.number`,
	"{these keys}", `({rows ?2}) k STRAIGHT_JOIN {statuses} s FORCE INDEX (message) ON s.message_number = c.c0 AND s.handler_key = k.c0`,
	"{numbered}", `{message ids} i FORCE INDEX (number) STRAIGHT_JOIN {messages} m FORCE INDEX (PRIMARY) ON m.number = i.number`,
	"{number}", `i.number`,
	"{remembered}", `(SELECT 1 FROM {message ids} i FORCE INDEX (number) WHERE i.number = m.number) IS NOT NULL`,
	"{number,}", `number, `,
	"{its number,}", `(SELECT i.number FROM {message ids} i FORCE INDEX (PRIMARY) WHERE i.id = ? AND i.namespace = ?), `,
}

// tableSQL reads the dictionary's row of a table. A view of this name is there before the table.
const tableSQL = `
SELECT COUNT(*) > 0 FROM information_schema.tables
WHERE table_schema = COALESCE(?1, DATABASE()) AND table_name = ?2 AND table_type = 'BASE TABLE'`

func (s *Store) hasTable(ctx context.Context, pool gorm.ConnPool, table string) (bool, error) {
	schema, name := s.table(s.own(table))
	found, err := store.Query(ctx, pool, tableSQL, store.Value[bool], schema, name)
	return err == nil && found[0], err
}

// layoutSQL opens the table as it is now. The dictionary would be as old as the snapshot of a caller's transaction.
const layoutSQL = `SELECT number FROM {parted messages} FORCE INDEX (received_at) LIMIT 0`

// readLayout looks for the table: it is missing (1146) or a view that has no such index (1176), or this account has no
// right on it (1142). A snapshot may be older than the table (1412).
//
// In a caller's transaction the failure is taken back: it is none of a handler's.
func (s *Store) readLayout(ctx context.Context, pool gorm.ConnPool) (partitioned bool, err error) {
	read := func() error {
		_, err := store.Query(ctx, pool, s.Text(layoutSQL), store.Value[int64])
		return err
	}
	if _, joined := pool.(gorm.TxCommitter); joined {
		err = allOrNothing(ctx, pool, read)
	} else {
		err = read()
	}
	switch number, _, _ := mysqldialect.Code(err); number {
	case 1142, 1146, 1176:
		return false, nil
	case 1412:
		return true, nil
	}
	return err == nil, err
}

// refreshLayout reads the layout again. pool may be in a caller's transaction.
func (s *Store) refreshLayout(ctx context.Context, pool gorm.ConnPool) error {
	partitioned, err := s.readLayout(ctx, pool)
	if err != nil {
		return base.Doing("read the tables' layout", err)
	}
	s.layout.Lock()
	defer s.layout.Unlock()
	s.known.Store(true)
	if partitioned != s.partitioned.Load() {
		words := plainWords
		if partitioned {
			words = partitionedWords
		}
		s.SetWords(words...)
		s.partitioned.Store(partitioned)
	}
	return nil
}

func (s *Store) Partitioned(ctx context.Context) (bool, error) {
	err := s.refreshLayout(ctx, s.Pool(ctx))
	return s.partitioned.Load(), err
}

// firstRead bounds reading the layout before a store's first statement.
const firstRead = 2 * time.Second

// Layout reads the layout before the first statement, once: a program that only lists something would fail otherwise,
// each time it runs. If that fails, the statement does, too.
func (s *Store) Layout() string {
	if s.known.CompareAndSwap(false, true) {
		ctx, cancel := context.WithTimeout(context.Background(), firstRead)
		defer cancel()
		_ = s.refreshLayout(ctx, s.DB.WithContext(ctx).Statement.ConnPool)
	}
	if s.partitioned.Load() {
		return "partitioned"
	}
	return "plain"
}

// forAnotherLayout reports whether a statement has failed as one for the other layout does: a table is missing (1146),
// or a view has no such key (1176), cannot be changed (1288, 1395) or inserted into (1471).
func forAnotherLayout(failure error) bool {
	number, _, _ := mysqldialect.Code(failure)
	return slices.Contains([]int{1146, 1176, 1288, 1395, 1471}, number)
}

func (s *Store) Follow(ctx context.Context, layout string, failure error) error {
	return s.layouts.Follow(ctx, s.DB, layout, failure)
}

// Transaction follows the layout, as single statements do.
func (s *Store) Transaction(ctx context.Context, work func(gorm.ConnPool) error) error {
	return s.Singles.Followed(ctx, func() error { return s.Database.Transaction(ctx, work) })
}

func (s *Store) Look(ctx context.Context) { s.layouts.Look(ctx, s.DB) }

// joined reads the layout first if no statement has: by the caller's transaction, which may have the pool's only
// connection.
func (s *Store) joined(ctx context.Context, tx *gorm.DB, work func(gorm.ConnPool) error) error {
	return s.layouts.Joined(ctx, tx, func(pool gorm.ConnPool) error {
		if !s.known.Load() {
			if err := s.refreshLayout(ctx, pool); err != nil {
				return err
			}
		}
		return work(pool)
	})
}
