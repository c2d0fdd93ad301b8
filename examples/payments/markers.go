package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/models"
)

// Markers are where a run remembers what was processed: in the database, or in
// Redis.
type Markers struct {
	idempotent.Store
	// Wrap wraps the handler.
	Wrap func(*Book) (handleFunc, error)
	// Close closes what OpenMarkers opened.
	Close func() error
}

// OpenMarkers uses Redis if there is an address.
func OpenMarkers(db *gorm.DB, address, run string) (*Markers, error) {
	if address == "" {
		store, err := NewGORMStore(db)
		if err != nil {
			return nil, err
		}
		return &Markers{store, func(b *Book) (handleFunc, error) { return b.InDatabase(store) }, func() error { return nil }},
			nil
	}
	store, err := NewRedisStore(address, run)
	if err != nil {
		return nil, err
	}
	return &Markers{store, func(b *Book) (handleFunc, error) { return b.InRedis(store, db) }, store.Close}, nil
}

// MakeTables makes the table of the markers, for which the database needs all of
// an inbox's.
func MakeTables(ctx context.Context, db *gorm.DB) error {
	return models.Migrate(ctx, db, models.Naming{}, "")
}

// RedisURL makes a URL of host:port.
func RedisURL(address string) string {
	if address == "" || strings.Contains(address, "://") {
		return address
	}
	return "redis://" + address
}

// RemoveMarkers removes a run's keys from Redis.
func RemoveMarkers(ctx context.Context, address, run string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	options, err := redis.ParseURL(address)
	if err != nil {
		return errors.New("the address of Redis is not a URL") // which may hold a password
	}
	client := redis.NewClient(options)
	defer func() { err = errors.Join(err, client.Close()) }()
	keys := client.Scan(ctx, 0, run+":*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := client.Del(ctx, keys.Val()).Err(); err != nil {
			return fmt.Errorf("remove markers: %w", err)
		}
	}
	if err := keys.Err(); err != nil {
		return fmt.Errorf("remove markers: %w", err)
	}
	return nil
}
