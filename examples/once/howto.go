package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// handleFunc is a wrapped handler.
type handleFunc = func(ctx context.Context, p Payment) error

func applyTx(_ context.Context, tx *gorm.DB, p Payment) error {
	return tx.Exec("UPDATE accounts SET cents = cents + ? WHERE name = ?", p.Cents, p.Account).Error
}

// channelOf wraps all handlers of a channel.
func channelOf(store *gormstore.Store, notify handleFunc, log *zap.Logger) (apply, tell handleFunc, err error) {
	payments, err := idempotent.New(store,
		idempotent.Configure(func(o *idempotent.Options) {
			o.RequireStore = true
			o.Channel = "payments"
			o.Retention = 7 * 24 * time.Hour
			o.Duplicates = idempotent.LogDuplicates
			o.Logger = log
		}))
	if err != nil {
		return nil, nil, err
	}
	apply, err = gormstore.Handle(payments, store, "apply-payment", applyTx)
	if err != nil {
		return nil, nil, err
	}
	tell, err = idempotent.Handle(payments, "notify-payer", notify, idempotent.Configure(func(o *idempotent.Options) {
		o.Retention = 24 * time.Hour
	}))
	return apply, tell, err
}

// settle says what a transport is told.
func settle(
	ctx context.Context, handle handleFunc, d Delivery, deadLetter func(Delivery, error), redeliver func(Delivery),
) {
	err := handle(ctx, d.Payment)
	var noID *idempotent.IDError
	switch {
	case err == nil: // handled now, or before
		d.Acknowledge()
	case errors.As(err, &noID): // comes again the same
		deadLetter(d, err)
		d.Acknowledge()
	default: // idempotent.ErrInProgress, idempotent.ErrLost, the store's or the handler's own error
		redeliver(d)
	}
}

func inRedis(client redis.UniversalClient, log *zap.Logger, charge handleFunc) (handleFunc, error) {
	store, err := redisstore.New(client, func(o *redisstore.Options) {
		o.KeyPrefix = "payments"
		o.Logger = log
	})
	if err != nil {
		return nil, err
	}
	return idempotent.Wrap(store, "charge", charge)
}

func inMemory(charge handleFunc) (handleFunc, error) {
	store, err := memstore.New(func(o *memstore.Options) { o.MaxKeys = 10_000 })
	if err != nil {
		return nil, err
	}
	return idempotent.Wrap(store, "charge", charge)
}

// Order is a payload without MessageID.
type Order struct{ Number string }

func byPayload(
	store idempotent.Store, ship func(context.Context, Order) error,
) (func(context.Context, Order) error, error) {
	return idempotent.Wrap(store, "ship", ship, idempotent.KeyBy(func(o Order) (string, error) { return o.Number, nil }))
}

func byHeader(store *gormstore.Store) (func(context.Context, kafka.Message) error, error) {
	return gormstore.Wrap(store, "apply-payment", func(ctx context.Context, tx *gorm.DB, m kafka.Message) error {
		var p Payment
		if err := json.Unmarshal(m.Value, &p); err != nil {
			return err
		}
		return applyTx(ctx, tx, p)
	}, idempotent.RecordBy(kafkaconsumer.RecordOf), idempotent.IDFrom(envelope.HeaderID("Payment-Id")))
}

// sweeping forgets what is past its retention until stop is called.
func sweeping(store *gormstore.Store, log *zap.Logger) (stop func(context.Context) error, err error) {
	sweeper, err := idempotent.NewSweeper(store, func(o *idempotent.SweepOptions) {
		o.Interval = time.Hour
		o.Logger = log
	})
	if err != nil {
		return nil, err
	}
	sweeper.Start()
	return sweeper.Stop, nil
}

// together handles a payment in a transaction of the application's own.
func together(ctx context.Context, db *gorm.DB, handle handleFunc, p Payment) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("UPDATE accounts SET cents = cents - 1 WHERE name = 'fees'").Error; err != nil {
			return err
		}
		return handle(gormstore.WithTx(ctx, tx), p)
	})
}
