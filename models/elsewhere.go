package models

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialect"
)

// maxElsewhere bounds how many inboxes of a database are named.
const maxElsewhere = 10

// elsewhere describes where the tables of naming were not found and which inboxes the database has, for people who may
// have named the wrong one. It never fails: what cannot be read is left out.
func elsewhere(ctx context.Context, pool gorm.ConnPool, d *dialect.Dialect, naming Naming) string {
	at, path := "this database", ""
	_ = each(ctx, pool, d.PlaceSQL, func(rows *sql.Rows) error { return rows.Scan(&at, &path) })
	text := "looked in " + at
	if naming.Schema == "" && path != "" {
		text += " (search path: " + path + ")"
	}
	type place struct {
		Naming
		readable bool
	}
	var found []place
	err := each(ctx, pool, d.InboxesSQL(maxElsewhere+1), func(rows *sql.Rows) error {
		var p place
		err := rows.Scan(&p.Schema, &p.Prefix, &p.readable)
		if err == nil && p.Prefix != "" && p.Validate() == nil {
			found = append(found, p)
		}
		return err
	})
	switch {
	case err != nil:
		return text + ", whose inboxes could not be listed."
	case len(found) == 0:
		return text + ". It has no inbox at all. Is it the right database?"
	}
	var names []string
	for _, p := range found[:min(len(found), maxElsewhere)] {
		name := "an inbox whose name this role may not read"
		if p.readable {
			if values, err := metaValues(ctx, pool, p.Naming); err == nil {
				name = fmt.Sprintf("%q", values["name"])
			}
		}
		names = append(names, fmt.Sprintf("%s (%s)", name, p.describe()))
	}
	if len(found) > maxElsewhere {
		names = append(names, "more")
	}
	return text + ". It has other inboxes: " + strings.Join(names, ", ") + ". Is one of these meant?"
}
