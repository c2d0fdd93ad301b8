package postgres

import (
	"context"
	"database/sql"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/shared"
)

// Changes nothing, reads no table.
const defaultIsolationSQL = `
SELECT current_user, current_database(), setting, source FROM pg_settings WHERE name = 'default_transaction_isolation'`

func (p *Store) DefaultIsolation(ctx context.Context) (found store.DefaultIsolation, other bool, err error) {
	all, err := store.Query(ctx, p.Pool(ctx), defaultIsolationSQL, func(rows *sql.Rows, d *store.DefaultIsolation) error {
		return rows.Scan(&d.Role, &d.Database, &d.Level, &d.Source)
	})
	if err != nil || len(all) == 0 || all[0].Level == "read committed" {
		return store.DefaultIsolation{}, false, shared.Doing("read the default isolation", err)
	}
	p.Singles.StateIsolation()
	return all[0], true, nil
}
