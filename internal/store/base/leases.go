package base

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

func (c Common) AcquireLease(ctx context.Context, name, owner string, ttl time.Duration, now time.Time) (bool, error) {
	held, err := c.dialect.AcquireLeases(ctx, []string{name}, owner, ttl, now)
	return len(held) == 1, err
}

func (c Common) LeaseOwner(ctx context.Context, name string) (string, error) {
	owners, err := c.LeaseOwners(ctx, []string{name})
	return owners[name], err
}

func (c Common) LeaseOwners(ctx context.Context, names []string) (map[string]string, error) {
	rows, err := inParts(c, names, func(part any) ([][2]string, error) {
		return store.Query(ctx, c.Pool(ctx), c.Text(c.sql.LeaseOwners), func(rows *sql.Rows, row *[2]string) error {
			return rows.Scan(&row[0], &row[1])
		}, part)
	})
	owners := make(map[string]string, len(rows))
	for _, row := range rows {
		owners[row[0]] = row[1]
	}
	return owners, Doing("read "+Leases(names), err)
}

func (c Common) ReleaseLease(ctx context.Context, name, owner string) error {
	return c.ReleaseLeases(ctx, []string{name}, owner)
}

func (c Common) ReleaseLeases(ctx context.Context, names []string, owner string) error {
	_, err := inParts(c, names, func(part any) ([]struct{}, error) {
		_, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.ReleaseLeases), part, owner)
		return nil, err
	})
	return Doing("release "+Leases(names), err)
}

// Leases names leases in an error: the first of them, and how many there are.
func Leases(names []string) string {
	switch len(names) {
	case 0:
		return "no lease"
	case 1:
		return "lease " + names[0]
	}
	return fmt.Sprintf("lease %s and %d more", names[0], len(names)-1)
}

func (c Common) Paused(ctx context.Context) ([]string, error) {
	keys, err := store.Query(ctx, c.Pool(ctx), c.Text(c.sql.Paused), store.Value[string])
	return keys, Doing("list paused handler keys", err)
}

func (c Common) SetPaused(ctx context.Context, handlerKey string, paused bool, now time.Time) error {
	_, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.SetPaused), handlerKey, paused, c.form.Time(now))
	return Doing("set paused", err)
}
