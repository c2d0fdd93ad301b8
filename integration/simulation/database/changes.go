package database

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// changes are the rows that a transaction has written and not committed: each as SQL literals, or nil if it is deleted.
type changes map[lock][]string

// table is what must be known of a table to lock and to repeat what is written to it.
type table struct {
	columns []string
	isID    bool        // one of them is the row ID
	keys    []key       // of its unique indexes
	refers  []reference // its foreign keys
}

// key is a unique index.
type key struct {
	name    string
	columns []string
	only    string // the condition of a partial index, or "true"
}

// reference is a foreign key.
type reference struct{ column, table, to string }

// changesOf returns what the current statement has written, and notes the locks that this takes: of the rows, of their
// unique keys, and of the rows that they refer to.
func (d *Database) changesOf(touched map[lock]bool) (changes, error) {
	written := changes{}
	rows, err := d.renumbered(touched)
	if err != nil {
		return nil, err
	}
	for _, at := range rows {
		t, err := d.table(at.table)
		if err != nil {
			return nil, err
		}
		where := " FROM " + quoted(at.table) + " WHERE rowid = CAST(?1 AS integer)"
		found, err := d.texts("SELECT quote("+strings.Join(t.columns, "), quote(")+")"+where, at.key)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			written[at] = nil
			d.want(at, Update)
			continue
		}
		written[at] = found[0]
		d.want(at, NoKeyUpdate)
		for _, k := range t.keys {
			values, err := d.texts(fmt.Sprintf("SELECT quote(%s)%s AND %s IS NOT NULL AND (%s)",
				strings.Join(k.columns, ") || ',' || quote("), where, strings.Join(k.columns, " IS NOT NULL AND "), k.only),
				at.key)
			if err != nil {
				return nil, err
			}
			for _, value := range values {
				d.want(lock{k.name, value[0]}, Update)
			}
		}
		for _, r := range t.refers {
			parents, err := d.texts(fmt.Sprintf("SELECT rowid FROM %s WHERE %s = (SELECT %s%s)", quoted(r.table), r.to, r.column,
				where), at.key)
			if err != nil {
				return nil, err
			}
			for _, parent := range parents {
				d.want(lock{r.table, parent[0]}, KeyShare)
			}
		}
	}
	return written, nil
}

// renumbered returns the rows that were touched. If an inserted one has an ID that was given out before, perhaps to a
// transaction that is open, all inserted ones of its table get new IDs.
func (d *Database) renumbered(touched map[lock]bool) (rows []lock, err error) {
	inserted := map[string][]int64{}
	for at, isNew := range touched {
		t, err := d.table(at.table)
		if err != nil {
			return nil, err
		}
		if !isNew || t.isID {
			rows = append(rows, at)
			continue
		}
		id, err := strconv.ParseInt(at.key, 10, 64)
		if err != nil {
			return nil, err
		}
		inserted[at.table] = append(inserted[at.table], id)
	}
	for table, ids := range inserted {
		slices.Sort(ids)
		highest, known := d.highest[table]
		d.highest[table] = max(highest, ids[len(ids)-1])
		for _, id := range ids {
			if known && ids[0] <= highest {
				d.highest[table]++
				if err := d.execute(fmt.Sprintf("UPDATE %s SET rowid = %d WHERE rowid = %d", quoted(table), d.highest[table],
					id)); err != nil {
					return nil, err
				}
				id = d.highest[table]
			}
			rows = append(rows, lock{table, strconv.FormatInt(id, 10)})
		}
	}
	return rows, nil
}

// apply repeats a change. It updates a row that exists: replacing one would delete those that refer to it.
func (d *Database) apply(at lock, row []string) error {
	if row == nil {
		return d.execute(fmt.Sprintf("DELETE FROM %s WHERE rowid = %s", quoted(at.table), at.key))
	}
	t, err := d.table(at.table)
	if err != nil {
		return err
	}
	var sets []string
	for i, column := range t.columns {
		sets = append(sets, column+" = "+row[i])
	}
	done, err := d.ask(statement{text: fmt.Sprintf("UPDATE %s SET %s WHERE rowid = %s", quoted(at.table),
		strings.Join(sets, ", "), at.key)})
	if err != nil || done.affected > 0 {
		return err
	}
	return d.execute(fmt.Sprintf("INSERT INTO %s (rowid, %s) VALUES (%s, %s)", quoted(at.table),
		strings.Join(t.columns, ", "), at.key, strings.Join(row, ", ")))
}

// table reads the schema of a table.
func (d *Database) table(name string) (*table, error) {
	if t := d.tables[name]; t != nil {
		return t, nil
	}
	t := &table{}
	columns, err := d.texts("SELECT name, pk > 0 AND type LIKE 'integer' FROM pragma_table_info(" + literal(name) + ")")
	if err != nil {
		return nil, err
	}
	keys, err := d.texts("SELECT name FROM pragma_table_info(" + literal(name) + ") WHERE pk > 0")
	if err != nil {
		return nil, err
	}
	for _, column := range columns {
		t.columns = append(t.columns, quoted(column[0]))
		t.isID = t.isID || len(keys) == 1 && column[1] == "1"
	}
	indexes, err := d.texts(`SELECT l.name, COALESCE(m.sql, '') FROM pragma_index_list(` + literal(name) + `) AS l
		LEFT JOIN sqlite_master AS m ON m.type = 'index' AND m.name = l.name WHERE l."unique"`)
	if err != nil {
		return nil, err
	}
	for _, index := range indexes {
		k := key{name: index[0], only: "true"}
		if _, condition, partial := strings.Cut(index[1], " WHERE "); partial {
			k.only = condition
		}
		parts, err := d.texts("SELECT name FROM pragma_index_info(" + literal(index[0]) + ")")
		if err != nil {
			return nil, err
		}
		for _, part := range parts {
			k.columns = append(k.columns, quoted(part[0]))
		}
		t.keys = append(t.keys, k)
	}
	references, err := d.texts(`SELECT "from", "table", "to" FROM pragma_foreign_key_list(` + literal(name) + `)`)
	if err != nil {
		return nil, err
	}
	for _, r := range references {
		t.refers = append(t.refers, reference{quoted(r[0]), r[1], quoted(r[2])})
	}
	if d.tables == nil {
		d.tables = map[string]*table{}
	}
	d.tables[name] = t
	return t, nil
}

func quoted(name string) string  { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
