package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// markerWait is how long a message waits in the database for another run of the same message. While it waits, it holds
// a slot and a connection, and delays a stop. The message then tries again, after a pause that holds neither.
const markerWait = time.Second

// memories are the handlers' markers in Inline channels, by channel.
type memories map[string]map[*handler.Handler]*synchronous.Memory

// newMemories makes the handlers' memories of all Inline channels.
func (cfg *Config) newMemories(log *zap.Logger) (memories, error) {
	all := memories{}
	var errs []error
	for _, c := range cfg.Channels {
		if c.Mode != Inline {
			continue
		}
		var err error
		if all[c.Name], err = cfg.channelMemories(c, log); err != nil {
			errs = append(errs, problems.Prefix(fmt.Sprintf("channel %q: ", c.Name), err))
		}
	}
	return all, errors.Join(errs...)
}

func (cfg *Config) channelMemories(
	c Channel, log *zap.Logger,
) (map[*handler.Handler]*synchronous.Memory, error) {
	channelStore := c.Markers.Store
	if !c.Markers.OwnStore {
		own, err := gormstore.New(cfg.DB, func(o *gormstore.Options) {
			o.Schema, o.TablePrefix = cfg.Naming.Schema, cfg.Naming.Prefix
			o.Clock = cfg.Clock
			o.StatementTimeout, o.LockTimeout = cfg.Processor.StatementTimeout, markerWait
		})
		if err != nil {
			return nil, err
		}
		channelStore = own
	}
	memories := map[*handler.Handler]*synchronous.Memory{}
	var errs []error
	for _, key := range c.HandlerKeys {
		h, _ := cfg.Registry.Lookup(key)
		declared := c.Markers.Of(key)
		store := channelStore
		if declared.Store != nil {
			store = declared.Store
		}
		m, err := synchronous.NewMemory(cfg.DB, store, h, c.receiverOptions(log), declared.Opts)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		memories[h] = m
	}
	return memories, errors.Join(errs...)
}

// receiverOptions returns the options of package idempotent that all handlers of a channel have. Messages without ID
// that its decoder lets pass then run without deduplication.
func (c Channel) receiverOptions(log *zap.Logger) []idempotent.Option {
	return append([]idempotent.Option{idempotent.Configure(func(o *idempotent.Options) {
		o.Channel, o.IDNamespace, o.Logger = c.Name, c.idNamespace(), log
		o.AllowMissingID = o.AllowMissingID || c.Kafka != nil && c.Kafka.Decoder.AllowMissingID
	})}, c.Markers.Defaults...)
}

// prepareInline checks the marker stores of Inline channels, and warns of missing ones and of markers that accumulate.
func (e *Engine) prepareInline(ctx context.Context) error {
	accumulating := []string{}
	for _, c := range e.cfg.Channels {
		if c.Mode != Inline {
			continue
		}
		if keys := c.Markers.WithoutStore(c.HandlerKeys); len(keys) > 0 {
			e.log.Warn("inbox: inline channel has no store of processed messages: handlers run each time a message comes; give inbox.InlineStore a store",
				zap.String(telemetry.FieldChannel, c.Name), zap.Strings(telemetry.FieldHandlerKeys, keys))
		}
		for _, store := range c.Markers.stores() {
			if err := checkStore(ctx, store); err != nil {
				return fmt.Errorf("channel %q: %w", c.Name, err)
			}
		}
		if !c.Markers.OwnStore {
			accumulating = append(accumulating, c.Name)
		}
	}
	if len(accumulating) > 0 && !e.cfg.Cleanup.SweepMarkers {
		e.log.Warn("inbox: option SweepMarkers is off: markers of inline channels accumulate",
			zap.Strings(telemetry.FieldChannels, accumulating))
	}
	return nil
}

// checkStore reports a missing table at start, before the first message needs it.
func checkStore(ctx context.Context, store idempotent.Store) error {
	if tables, ok := store.(*gormstore.Store); ok {
		return tables.Check(ctx)
	}
	return nil
}

// keepsMarkers reports whether an Inline channel keeps markers in the tables of the inbox on db, where cleanup may
// sweep them.
func (c Channel) keepsMarkers(db *gorm.DB) bool {
	return !c.Markers.OwnStore || slices.ContainsFunc(c.Markers.stores(), func(store idempotent.Store) bool {
		tables, ok := store.(*gormstore.Store)
		return ok && tables.Joins(db)
	})
}
