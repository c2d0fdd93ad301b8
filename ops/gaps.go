package ops

import (
	"context"
	"errors"

	"github.com/gorm-inbox/inbox/models"
)

// GapPage is a part of the list of gaps.
type GapPage struct {
	Gaps []models.Gap
	Next Cursor
}

// ListGaps returns a page of the gaps that consumers went past, those found
// last first (contract 7.5). See List for after and limit.
func (o *Ops) ListGaps(ctx context.Context, after Cursor, limit int) (GapPage, error) {
	return GapPage{}, errors.ErrUnsupported
}
