package base

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

func (c Common) LeaseOwner(ctx context.Context, name string) (string, error) {
	owners, err := store.Query(ctx, c.Pool(ctx), c.Text(c.sql.LeaseOwner), store.Value[string], name)
	if err != nil || len(owners) == 0 {
		return "", Doing("read lease "+name, err)
	}
	return owners[0], nil
}

func (c Common) ReleaseLease(ctx context.Context, name, owner string) error {
	_, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.ReleaseLease), name, owner)
	return Doing("release lease "+name, err)
}

func (c Common) Paused(ctx context.Context) ([]string, error) {
	keys, err := store.Query(ctx, c.Pool(ctx), c.Text(c.sql.Paused), store.Value[string])
	return keys, Doing("list paused handler keys", err)
}

func (c Common) SetPaused(ctx context.Context, handlerKey string, paused bool, now time.Time) error {
	_, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.SetPaused), handlerKey, paused, c.form.Time(now))
	return Doing("set paused", err)
}
