package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/models"
)

func newOps(db *gorm.DB, options []Option) (*Ops, error) {
	s := settings{clock: clock.System{}, statementTimeout: 10 * time.Second}
	for _, option := range options {
		option(&s)
	}
	if db == nil {
		return nil, errors.New("ops: no database")
	}
	if _, err := models.SQL(db.Dialector.Name(), s.naming); err != nil {
		return nil, fmt.Errorf("ops: %w", err)
	}
	return &Ops{settings: s, db: db}, nil
}

// CheckSchema returns an error that says what to do if the tables are not there,
// or too old for this program (contract 3.4). It only reads.
func (o *Ops) CheckSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, o.statementTimeout)
	defer cancel()
	return models.CheckTables(ctx, o.db, o.naming)
}
