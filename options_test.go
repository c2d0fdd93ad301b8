package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gopkg.in/yaml.v3"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
	"github.com/gorm-inbox/inbox/redact"
)

func TestOptionsLoadFromYAML(t *testing.T) {
	o := inbox.DefaultOptions()
	require.NoError(t, yaml.Unmarshal([]byte(`
max_retries: 7
max_retry_delay: 90s
handler_timeout: 1m30s
unrouted: reject
on_gap: continue
bad_records: dead_letter_topic
halt_at_bad_records: 100
shutdown_on_halt: true
mode: exclusive
retention: 168h
sweep_markers: true
audit_retention: 8760h
archive_timeout: 5m
migrate: true
table_prefix: shop_
`), &o))
	want := inbox.DefaultOptions()
	want.Processor.MaxRetries = 7
	want.Processor.MaxRetryDelay, want.Processor.HandlerTimeout = 90*time.Second, 90*time.Second
	want.Processor.Mode = processor.ModeExclusive
	want.Acceptor.Unrouted, want.Acceptor.OnGap = acceptor.UnroutedReject, acceptor.GapContinue
	want.Acceptor.Unrouted, want.Acceptor.BadRecords = acceptor.UnroutedReject, acceptor.BadRecordDeadLetter
	want.Acceptor.HaltAtBadRecords, want.ShutdownOnHalt = 100, true
	want.Cleanup.Retention = 168 * time.Hour
	want.Cleanup.SweepMarkers = true
	want.Cleanup.AuditRetention, want.Cleanup.ArchiveTimeout = 8760*time.Hour, 5*time.Minute
	want.Migrate, want.TablePrefix = true, "shop_"
	require.Equal(t, want, o)
	require.NoError(t, o.Validate())
}

func TestOptionsLoadFromTheEnvironment(t *testing.T) {
	t.Setenv("ORDERS_MAX_RETRIES", "7")
	t.Setenv("ORDERS_POLLING_INTERVAL", "1m")
	t.Setenv("ORDERS_BAD_RECORDS", "halt")
	t.Setenv("ORDERS_MODE", "competing")
	t.Setenv("ORDERS_RETENTION", "24h")
	t.Setenv("ORDERS_REJECTED_RETENTION", "48h")
	t.Setenv("ORDERS_SCHEMA", "shop")
	o := inbox.DefaultOptions()
	require.NoError(t, env.ParseWithOptions(&o, env.Options{Prefix: "ORDERS_"}))
	want := inbox.DefaultOptions()
	want.Processor.MaxRetries, want.Processor.PollingInterval = 7, time.Minute
	want.Acceptor.BadRecords = acceptor.BadRecordHalt
	want.Processor.Mode = processor.ModeCompeting
	want.Cleanup.Retention, want.Cleanup.RejectedRetention, want.Schema = 24*time.Hour, 48*time.Hour, "shop"
	require.Equal(t, want, o)
}

func TestLoadedOptionsApplyAndLaterOptionsWin(t *testing.T) {
	loaded := inbox.DefaultOptions()
	loaded.Processor.MaxRetries, loaded.TablePrefix = 1, "shop_"
	db := fxtest.OpenDB(t)
	ib := inboxtest.New(t, db, inbox.Configure(func(o *inbox.Options) {
		*o = loaded
		o.Processor.MaxRetries = 2
	}), inboxtest.Handlers(nothing("h")))
	inboxtest.Accept(t, ib, "1")
	var n int64
	require.NoError(t, db.Table("shop_messages").Count(&n).Error)
	require.EqualValues(t, 1, n)
}

func TestLoadingOptionsKeepsCodeOnlyFields(t *testing.T) {
	calls := map[string]int{}
	note := func(name string) handler.Middleware {
		return func(ctx context.Context, _ handler.Call, next func(context.Context) error) error {
			calls[name]++
			return next(ctx)
		}
	}
	loaded := inbox.DefaultOptions()
	loaded.Migrate = true
	loaded.Middleware = append(make([]handler.Middleware, 0, 8), note("shared")) // with room for what others append
	build := func(name string) *inbox.Inbox {
		ib, err := inbox.New(name, fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) {
			o.Redact = func(v redact.Value) []byte { return []byte("hidden") }
		}), inbox.Configure(nil), inbox.Configure(func(o *inbox.Options) {
			*o = loaded
			o.Middleware = append(o.Middleware, note(name))
		}), inboxtest.Handlers(inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error { return errors.New("secret") })))
		require.NoError(t, err)
		require.NoError(t, ib.Migrate(t.Context()))
		return ib
	}
	first, second := build("first"), build("second")
	for _, ib := range []*inbox.Inbox{first, second} {
		inboxtest.Accept(t, ib, "1")
		inboxtest.Process(t, ib)
		require.Equal(t, "hidden", *inboxtest.Status(t, ib, "1", "h").LastError, "the hook of before holds")
	}
	require.Equal(t, map[string]int{"shared": 2, "first": 1, "second": 1}, calls, "each inbox has its own")
}

func TestLoadedZeroOptionsAreRefused(t *testing.T) {
	_, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) {
		*o = inbox.Options{}
		o.Logger = zap.NewNop()
	}), inboxtest.Handlers(nothing("h")))
	require.EqualError(t, err, `inbox "orders": options are zero: start from inbox.DefaultOptions()`)
}
