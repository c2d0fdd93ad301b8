package inplace

import (
	"context"
	"errors"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
)

// Guard stands before every attempt and decides whether the handler runs:
// inline delivery keeps its markers with one. Run returns what the attempt
// comes to:
//
//   - nil without a call of run: the handler has done this message before, it
//     is skipped;
//   - nil after run returned nil: done;
//   - ErrInProgress, wrapped or not: somebody else is at it. Nothing is
//     charged, it is asked again after a pause, and until then the record is
//     not acknowledged;
//   - an error marked by Uncharged: its own trouble, treated alike, but said;
//   - any other error is the attempt's failure, a handler's steering errors
//     included: handler.Poison refuses the message for good.
//
// It may call run again after an error, never after nil, and must be safe for
// concurrent use.
type Guard interface {
	Run(ctx context.Context, h *handler.Handler, d handler.Delivery, run Attempt) error
}

// Attempt runs the handler once, from the transaction's begin to its commit if
// it has one: after nil its effects are durable. A message without an ID has id
// as its ID then, if that is not empty. With first, which may be nil,
// the attempt runs in a transaction whatever the handler's kind (a plain one
// finds it by handler.DB), and first runs in it before the handler: what it
// writes is committed with the handler's writes or not at all. An error of
// first is returned, perhaps wrapped as one that charges nothing because the
// database was in trouble, and the handler is not run; with ErrDone the
// transaction is committed before that, or its error returned. When a commit's
// answer is lost the error is one that charges nothing, and it is open whether
// first's writes and the handler's are there; the next attempt sees.
type Attempt func(ctx context.Context, id string, first func(ctx context.Context, tx *gorm.DB) error) error

// ErrDone is what first returns if the handler has done the message before. What it
// has read may be stored on this server alone; the commit waits until the
// synchronous standby has it, too, if first has written or locked something.
var ErrDone = errors.New("the handler has processed the message before")

// ErrInProgress is what a Guard returns while the same message is being
// handled elsewhere.
var ErrInProgress = errors.New("the message is being handled elsewhere")
