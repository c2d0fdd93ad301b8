package inbox

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/processor"
)

// Start checks the schema (or migrates), then starts processor, cleanup and
// consumers, in this order (contract 10.5). The end of ctx does not end what
// runs. If it fails, nothing is left running. Starting twice does nothing; a
// stopped inbox can be started again.
func (ib *Inbox) Start(ctx context.Context) error {
	ib.mu.Lock()
	defer ib.mu.Unlock()
	if ib.started {
		return nil
	}
	if err := ib.prepare(ctx); err != nil {
		return ib.name(err)
	}
	if ib.cfg.manual {
		ib.started = true
		return nil
	}
	if err := ib.processor.Start(ctx); err != nil {
		return ib.name(err)
	}
	ib.cleaner.Start()
	ib.started = true
	return nil
}

// Stop ends everything in reverse order: consumers, cleanup, processor, which
// gets what is left of ctx's time, see processor.Processor.Stop. Stopping
// twice, or before Start, does nothing.
func (ib *Inbox) Stop(ctx context.Context) error {
	ib.mu.Lock()
	defer ib.mu.Unlock()
	if !ib.started {
		return nil
	}
	ib.started = false
	if ib.cfg.manual {
		return nil
	}
	ib.cleaner.Stop()
	return ib.name(ib.processor.Stop(ctx))
}

// prepare looks at the database before anything runs on it.
func (ib *Inbox) prepare(ctx context.Context) error {
	if ib.cfg.options.Migrate {
		if err := models.Migrate(ctx, ib.db, ib.naming, ib.cfg.name); err != nil {
			return err
		}
	}
	if err := models.CheckSchema(ctx, ib.db, ib.naming, ib.cfg.name); err != nil {
		return err
	}
	ib.warnPool()
	return ib.warnForeignKeys(ctx)
}

// spareConnections is what an inbox needs beside its handlers' connections:
// for accepting, claiming, storing results and heartbeats.
const spareConnections = 4

// warnPool says when handlers would wait for connections (contract 3.7).
func (ib *Inbox) warnPool() {
	pool, err := ib.db.DB()
	if err != nil {
		return // a pool of another kind, about which nothing is known
	}
	limit := pool.Stats().MaxOpenConnections
	if want := ib.cfg.options.Processor.Concurrency + spareConnections; limit > 0 && limit < want {
		ib.log.Warn("inbox: the database pool is smaller than Concurrency needs: handlers will wait for connections, or for ever if one uses two",
			zap.Int("max_open_connections", limit), zap.Int("wanted", want))
	}
}

// warnForeignKeys says which stored handler keys nobody here registers: a
// forgotten legacy key, perhaps (contract 5.16).
func (ib *Inbox) warnForeignKeys(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	keys, err := ib.store.PendingKeys(ctx)
	if err != nil {
		return fmt.Errorf("look for stored handler keys: %w", err)
	}
	for _, key := range keys {
		if _, known := ib.registry.Lookup(key); !known {
			ib.log.Warn("inbox: pending statuses of a handler key that this process does not register; a renamed handler needs inbox.LegacyKeys",
				zap.String("handler_key", key))
		}
	}
	return nil
}

// Health is the state of an inbox at one moment.
type Health struct {
	Processor processor.Health
}

// Degraded says what is wrong, nil if nothing is.
func (h Health) Degraded() error {
	var problems []error
	for what, err := range h.Processor.Troubles {
		problems = append(problems, fmt.Errorf("%s: %w", what, err))
	}
	for key, n := range h.Processor.Stuck {
		problems = append(problems, fmt.Errorf("handler %q: %d calls ignore their cancelled context", key, n))
	}
	return errors.Join(problems...)
}

// Health tells how the inbox is.
func (ib *Inbox) Health() Health { return Health{Processor: ib.processor.Health()} }
