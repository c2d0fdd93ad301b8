package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/idempotent"
)

// Books are everything that is left when all has ended. Nothing in them comes
// from a counter.
type Books struct {
	Accounts []Account
	Entries  []Entry
	// Remembered are the payments that the store says were processed.
	Remembered map[string]bool
	// Calls are the payments the handler was called for, call by call.
	Calls []string
}

// ReadBooks reads the database, the store and the file of the handler's calls.
func ReadBooks(
	ctx context.Context, place *scratch.Place, store idempotent.Store, payments []Payment,
) (b Books, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	db := place.DB.WithContext(ctx)
	if err := db.Order("id").Find(&b.Accounts).Error; err != nil {
		return b, fmt.Errorf("read accounts: %w", err)
	}
	if err := db.Order("id").Find(&b.Entries).Error; err != nil {
		return b, fmt.Errorf("read entries: %w", err)
	}
	b.Remembered = map[string]bool{}
	for _, p := range payments {
		if b.Remembered[p.ID], err = store.Processed(ctx,
			idempotent.Key{MessageID: p.ID, HandlerKey: applyPayment}); err != nil {
			return b, fmt.Errorf("read markers: %w", err)
		}
	}
	b.Calls, err = scratch.ReadCalls(place.File(callsFile))
	return b, err
}
