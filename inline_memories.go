package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/problems"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// markerWait is how long a message waits in the database for another run of it:
// it has a slot and a connection meanwhile, and holds up a stop. It is asked for
// again after a pause without both.
const markerWait = time.Second

// memories are what remembers for the handlers of Inline channels, by channel.
type memories map[string]map[*handler.Handler]*synchronous.Memory

func (ib *Inbox) newMemories(naming models.Naming) (memories, error) {
	all := memories{}
	var errs []error
	for _, c := range ib.cfg.channels {
		if c.delivery != inlined {
			continue
		}
		var err error
		if all[c.name], err = ib.memoriesOf(c, naming); err != nil {
			errs = append(errs, problems.Prefix(fmt.Sprintf("channel %q: ", c.name), err))
		}
	}
	return all, errors.Join(errs...)
}

func (ib *Inbox) memoriesOf(c *channel, naming models.Naming) (map[*handler.Handler]*synchronous.Memory, error) {
	store := c.inline.store
	if !c.inline.ownStore {
		own, err := gormstore.New(ib.db, func(o *gormstore.Options) {
			o.Schema = naming.Schema
			o.TablePrefix = naming.Prefix
			o.Clock = ib.cfg.clock
			o.StatementTimeout = ib.cfg.options.Processor.StatementTimeout
			o.LockTimeout = markerWait
		})
		if err != nil {
			return nil, err
		}
		store = own
	}
	memories := map[*handler.Handler]*synchronous.Memory{}
	var errs []error
	for _, s := range c.subscriptions {
		if s.spec == nil {
			continue
		}
		h, _ := ib.registry.Lookup(s.spec.key)
		declared := c.inline.of(s.spec.key)
		its := store
		if declared.store != nil {
			its = declared.store
		}
		m, err := synchronous.NewMemory(ib.db, its, h, ib.inlineDefaults(c), declared.opts)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		memories[h] = m
	}
	return memories, errors.Join(errs...)
}

// inlineDefaults are the options of a channel's handlers.
func (ib *Inbox) inlineDefaults(c *channel) []idempotent.Option {
	opts := []idempotent.Option{idempotent.Configure(func(o *idempotent.Options) {
		o.Channel = c.name
		o.IDNamespace = c.idNamespace()
		o.Logger = ib.log
	})}
	if c.allowsMissingID() {
		opts = append(opts, idempotent.Configure(func(o *idempotent.Options) { o.AllowMissingID = true }))
	}
	return append(opts, c.inline.defaults...)
}

// allowsMissingID says whether the transport's decoder lets messages without ID
// pass: inline they run undeduplicated (contract 4.4).
func (c *channel) allowsMissingID() bool {
	return len(c.kafka) > 0 && c.kafka[0].Decoder.AllowMissingID
}

// prepareInline looks at the stores of Inline channels and says what to expect of
// them.
func (ib *Inbox) prepareInline(ctx context.Context) error {
	accumulating := []string{}
	for _, c := range ib.cfg.channels {
		if c.delivery != inlined {
			continue
		}
		if keys := c.inline.storeless(c); len(keys) > 0 {
			ib.log.Warn("inbox: inline channel has no store of processed messages, handlers run each time a message comes; logged once",
				zap.String(telemetry.FieldChannel, c.name), zap.Strings(telemetry.FieldHandlerKeys, keys))
		}
		for _, store := range c.inline.stores() {
			if err := checkStore(ctx, store); err != nil {
				return fmt.Errorf("channel %q: %w", c.name, err)
			}
		}
		if !c.inline.ownStore {
			accumulating = append(accumulating, c.name)
		}
	}
	if len(accumulating) > 0 && !ib.cfg.options.Cleanup.SweepMarkers {
		ib.log.Warn("inbox: markers of inline channels accumulate, because option SweepMarkers is off; logged once",
			zap.Strings(telemetry.FieldChannels, accumulating))
	}
	return nil
}

// checkStore finds out before the first message does that a table is missing.
func checkStore(ctx context.Context, store idempotent.Store) error {
	if tables, ok := store.(*gormstore.Store); ok {
		return tables.Check(ctx)
	}
	return nil
}

// sweeps says whether cleanup deletes what a channel recognises redeliveries by,
// so that it has to wait for the channel's consumer (contract 6.5).
func (ib *Inbox) sweeps(channel string) bool {
	for _, c := range ib.cfg.channels {
		if c.name != channel || c.delivery != inlined || !ib.cfg.options.Cleanup.SweepMarkers {
			continue
		}
		return !c.inline.ownStore || slices.ContainsFunc(c.inline.stores(), func(store idempotent.Store) bool {
			tables, ok := store.(*gormstore.Store)
			return ok && tables.Joins(ib.db)
		})
	}
	return false
}
