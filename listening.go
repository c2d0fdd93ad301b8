package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/store"
)

func (cfg *config) storeOptions() store.Options {
	return store.Options{Announces: cfg.options.Processor.Listen, TestClock: clock.IsTest(cfg.clock)}
}

// checkListen looks at the pool's driver. Whether notifications arrive shows
// later, and may change: that is a matter of health, not of the start.
func (ib *Inbox) checkListen(ctx context.Context) error {
	if !ib.cfg.options.Processor.Listen || ib.cfg.manual {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	err := ib.store.CanListen(ctx)
	if errors.Is(err, store.ErrCannotListen) {
		return fmt.Errorf("option Listen cannot be used with this pool: %w", err)
	}
	return err
}
