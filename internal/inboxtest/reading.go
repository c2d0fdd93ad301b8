package inboxtest

import (
	"context"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/ops"
)

// Reading is an application in which Read reads topics again.
type Reading struct {
	ops.Live
	Read func(context.Context, envelope.ReadAgain) (envelope.ReadAgainResult, error)
}

// ReadAgain calls Read.
func (l Reading) ReadAgain(ctx context.Context, r envelope.ReadAgain) (envelope.ReadAgainResult, error) {
	return l.Read(ctx, r)
}
