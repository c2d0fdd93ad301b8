package postgres

import (
	"context"

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

// atPlace finds rows by their place in the plain layout. Places are unique within one partition only. A process that
// does not know yet that the tables have become partitioned finds no row, instead of another one: no row of a
// partition has the parent's OID.
const atPlace = `tableoid = '{statuses}'::regclass AND ctid`

// plainWords are the parts of statements in the plain layout.
var plainWords = []string{
	"{ids first}", "", "{number,}", "", "{ids.number,}", "",
	"{if new}", `ON CONFLICT (id, namespace) DO NOTHING`,
	"{known message}", `{messages} m ON m.id = k.id AND m.namespace = k.namespace`, "{and its id}", "",
	"{remembered}", "true", "{status remembered}", "true",
}

// partitionedWords are the parts of statements in the partitioned layout. A claim finds its rows by
// handler_statuses_open of each partition; in old ones that index is all but empty. A message is remembered as long as
// its ID is known: cleanup forgets it first, and its partition goes later. The sub-select reads message_ids_number, row
// by row, however many rows the planner expects.
var partitionedWords = []string{
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
	"{and its id}", ", i",
	"{remembered}", `(SELECT true FROM {message ids} i WHERE i.number = m.number) IS NOT NULL`,
	"{status remembered}", `(SELECT true FROM {message ids} i WHERE i.number = s.message_number) IS NOT NULL`,
	"{ids}", "{message ids}",
}

// layoutSQL reads the catalog's row of the table by its OID.
const layoutSQL = `SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('{statuses}') AND relkind = 'p')`

func (p *Store) readLayout(ctx context.Context, pool gorm.ConnPool) (partitioned bool, err error) {
	found, err := store.Query(ctx, pool, p.Text(layoutSQL), store.Value[bool])
	if err != nil {
		return false, err
	}
	return found[0], nil
}

// Partitioned reports whether the tables are partitioned, as far as this store knows.
func (p *Store) Partitioned() bool {
	f := p.profile.Load()
	return f != nil && f.partitioned
}

// RefreshLayout reads the layout again. Processes call it at times, so that they follow a change within a heartbeat.
// Until then their claims find no rows, and their accepts read the layout when they fail.
func (p *Store) RefreshLayout(ctx context.Context) error {
	f := p.profile.Load()
	if f == nil {
		return p.choose(ctx, p.Pool(ctx))
	}
	if f.portable {
		return nil
	}
	partitioned, err := p.readLayout(ctx, p.Pool(ctx))
	if err == nil && partitioned != f.partitioned {
		p.become(profile{partitioned: partitioned})
	}
	return base.Doing("read the tables' layout", err)
}

// followLayout reads the layout again if a statement has failed as one for the other layout does, and reports whether
// it has changed: a conflict's index is missing (42P10), or a table (42P01).
func (p *Store) followLayout(ctx context.Context, failure error) (changed bool) {
	if state := pgdialect.SQLState(failure); state != "42P10" && state != "42P01" {
		return false
	}
	before := p.Partitioned()
	return p.RefreshLayout(ctx) == nil && p.Partitioned() != before
}
