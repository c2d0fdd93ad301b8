package postgres

import (
	"context"
	"slices"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdialect"
)

// This file has what differs between the two layouts of the tables in statements that are the same otherwise. In the
// plain layout {messages} and {statuses} are tables, and the messages' primary key recognises duplicates. In the other
// one they are partitioned by ranges of the message's number. A unique index of theirs must contain the number, so two
// slim tables have what must be unique at all times: {message ids} has each known ID with its message's number, and
// {lane holders} each lane with a claimed row, which triggers keep.
//
// The partitioned tables have other names, and the plain tables' names are then those of views for people, which can
// neither be changed nor locked. So a statement that was made for the other layout fails, whoever sends it: none finds
// nothing, or locks or changes another row. Follow makes all later statements for the layout there is.

// plainWords are the parts of statements in the plain layout, besides those that all dialects have.
var plainWords = []string{
	"{ids first}", "", "{number,}", "", "{ids.number,}", "",
	"{if new}", `ON CONFLICT (id, namespace) DO NOTHING`,
	"{known message}", `{messages} m ON m.id = k.id AND m.namespace = k.namespace`, "{id and message}", "m",
	"{remembered}", "true", "{status remembered}", "true",
}

// partitionedWords are the parts of statements in the partitioned layout. A claim finds its rows by
// handler_statuses_open of each partition; in old ones that index is all but empty. A message is remembered as long as
// its ID is known: cleanup forgets it first, and its partition goes later. The sub-select reads message_ids_number, row
// by row, however many rows the planner expects.
var partitionedWords = []string{
	"{messages}", "{parted messages}", "{statuses}", "{parted statuses}", "{ids}", "{message ids}",
	"{place}", "id", "{at place}", base.OpenSQL + ` AND id`,
	"{ids first}", `ids AS (
	INSERT INTO {message ids} (id, namespace)
	SELECT m.id, COALESCE(m.namespace, ($16::text[])[1]) FROM unnest($1::text[], $16::text[]) AS m(id, namespace)
	ON CONFLICT (id, namespace) DO NOTHING
	RETURNING id, namespace, number
), `,
	"{number,}", "number, ", "{ids.number,}", "ids.number, ",
	"{if new}", `JOIN ids ON ids.id = m.id AND ids.namespace = COALESCE(m.namespace, ($16::text[])[1])`,
	"{known message}", `{message ids} i ON i.id = k.id AND i.namespace = k.namespace JOIN {messages} m ON m.number = i.number`,
	"{id and message}", "i, m",
	"{of known ID}", ` AND number IN (SELECT i.number FROM {message ids} i WHERE i.id = $15 AND ($16 = '' OR i.namespace = $16))`,
	"{remembered}", `(SELECT true FROM {message ids} i WHERE i.number = m.number) IS NOT NULL`,
	"{status remembered}", `(SELECT true FROM {message ids} i WHERE i.number = s.message_number) IS NOT NULL`,
}

// viewsSQL make the views for people. What cleanup has forgotten is not in them, unless an operator has run a status
// again. A set-returning function keeps a view's rows from being locked.
var viewsSQL = []string{
	`CREATE VIEW {plain messages} AS SELECT ` + messageColumnsSQL + ` FROM (
	SELECT m.*, generate_series(1, 1) FROM {parted messages} m
	JOIN {message ids} i ON i.number = m.number AND i.id = m.id AND i.namespace = m.namespace
) known`,
	`CREATE VIEW {plain statuses} AS SELECT ` + statusColumnsSQL + ` FROM (
	SELECT s.*, generate_series(1, 1) FROM {parted statuses} s LEFT JOIN {message ids} i ON i.number = s.message_number
	WHERE s.completed_at IS NULL OR i.number IS NOT NULL
) known`,
}

// layoutSQL reads the catalog as it is, also where the transaction's snapshot is older.
const layoutSQL = `SELECT to_regclass('{parted statuses}') IS NOT NULL`

func (p *Store) readLayout(ctx context.Context, pool gorm.ConnPool) (partitioned bool, err error) {
	found, err := store.Query(ctx, pool, p.Text(layoutSQL), store.Value[bool])
	if err != nil {
		return false, err
	}
	return found[0], nil
}

// refreshLayout reads the layout again. pool may be in a caller's transaction.
func (p *Store) refreshLayout(ctx context.Context, pool gorm.ConnPool) error {
	f := p.profile.Load()
	if f == nil {
		return p.choose(ctx, pool)
	}
	if f.portable {
		return nil
	}
	partitioned, err := p.readLayout(ctx, pool)
	if err == nil && partitioned != f.partitioned {
		p.become(profile{partitioned: partitioned})
	}
	return base.Doing("read the tables' layout", err)
}

// isPartitioned reports for which layout statements are made at the moment.
func (p *Store) isPartitioned() bool {
	f := p.profile.Load()
	return f != nil && f.partitioned
}

func (p *Store) Partitioned(ctx context.Context) (bool, error) {
	err := p.refreshLayout(ctx, p.Pool(ctx))
	return p.isPartitioned(), err
}

func (p *Store) Layout() string {
	if p.isPartitioned() {
		return "partitioned"
	}
	return "plain"
}

// forAnotherLayout reports whether a statement has failed as one for the other layout does: a table is missing (42P01),
// or a view has no place of a row (42703), cannot be changed (55000) or its rows locked (0A000).
func forAnotherLayout(failure error) bool {
	return slices.Contains([]string{"42P01", "42703", "55000", "0A000"}, pgdialect.SQLState(failure))
}

func (p *Store) Look(ctx context.Context) { p.layouts.Look(ctx, p.DB) }

func (p *Store) Follow(ctx context.Context, layout string, failure error) error {
	return p.layouts.Follow(ctx, p.DB, layout, failure)
}

func (p *Store) joined(ctx context.Context, tx *gorm.DB, work func(gorm.ConnPool) error) error {
	return p.layouts.Joined(ctx, tx, work)
}
