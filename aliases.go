package inbox

import (
	"time"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/processor"
)

// What users of the package meet most is named here too, so that one import
// is enough.
type (
	// Message is what a handler gets, see handler.Message.
	Message[T any] = handler.Message[T]
	// RawMessage is what Accept takes, see handler.RawMessage.
	RawMessage = handler.RawMessage
	// Result is what Accept says of one message, see acceptor.Result.
	Result = acceptor.Result
	// Receipt is what AcceptTx returns, see acceptor.Receipt.
	Receipt = acceptor.Receipt
	// InvalidError is why a message cannot be accepted, see acceptor.InvalidError.
	InvalidError = acceptor.InvalidError
	// StillBadError is why a rejected record cannot be accepted, see handler.StillBadError.
	StillBadError = handler.StillBadError
	// Drained is what ProcessPending did, see processor.Drained.
	Drained = processor.Drained
	// Deleted is what Cleanup deleted, see handler.Deleted.
	Deleted = handler.Deleted
	// Archived is what the function given to Archive gets, see cleanup.Archived.
	Archived = cleanup.Archived
	// DifferingContentPolicy says what happens to other content under a known ID.
	DifferingContentPolicy = acceptor.DifferingContentPolicy
	// UnroutedPolicy says what happens to messages no handler takes.
	UnroutedPolicy = acceptor.UnroutedPolicy
	// BadRecordPolicy says what happens to bad records.
	BadRecordPolicy = acceptor.BadRecordPolicy
	// GapPolicy says what happens where records are missing.
	GapPolicy = acceptor.GapPolicy
	// ProcessingMode says how an inbox's workers share its work, see Mode.
	ProcessingMode = processor.Mode
	// Middleware runs around handlers' calls, see handler.Middleware.
	Middleware = handler.Middleware
	// Breaker configures CircuitBreaker, see handler.Breaker.
	Breaker = handler.Breaker
)

// The policies of Unrouted, BadRecords and OnGap, the modes, and the outcomes of
// Accept.
const (
	DifferingContentLog    = acceptor.DifferingContentLog
	DifferingContentReject = acceptor.DifferingContentReject
	UnroutedIgnore         = acceptor.UnroutedIgnore
	UnroutedReject         = acceptor.UnroutedReject
	UnroutedHalt           = acceptor.UnroutedHalt
	BadRecordStore         = acceptor.BadRecordStore
	// BadRecordDeadLetter publishes the record, see kafkaconsumer.Config.DeadLetterTopic.
	BadRecordDeadLetter = acceptor.BadRecordDeadLetter
	BadRecordHalt       = acceptor.BadRecordHalt
	GapHalt             = acceptor.GapHalt
	GapContinue         = acceptor.GapContinue

	ModeCompeting = processor.ModeCompeting
	ModeExclusive = processor.ModeExclusive

	OutcomeAccepted  = handler.OutcomeAccepted
	OutcomeDuplicate = handler.OutcomeDuplicate
	OutcomeUnrouted  = handler.OutcomeUnrouted
	OutcomeInvalid   = handler.OutcomeInvalid
)

// ErrLockHeld is ProcessPending's error while another worker holds the lock,
// see processor.ErrLockHeld.
var ErrLockHeld = processor.ErrLockHeld

// ErrRejectedNotFound is AcceptRejected's error for an unknown ID, see
// acceptor.ErrRejectedNotFound.
var ErrRejectedNotFound = acceptor.ErrRejectedNotFound

// LegacyKeys names the keys a handler had before, see handler.LegacyKeys.
func LegacyKeys(keys ...string) handler.Option { return handler.LegacyKeys(keys...) }

// Timeout limits each attempt of one handler, see handler.Timeout.
func Timeout(d time.Duration) handler.Option { return handler.Timeout(d) }

// WithCodec decodes one handler's bodies, see handler.WithCodec.
func WithCodec(codec any) handler.Option { return handler.WithCodec(codec) }

// IdempotencyKey takes the ID an Inline channel remembers one handler's messages
// by from their payload, see handler.IdempotencyKey.
func IdempotencyKey[T any](find func(m Message[T]) (string, error)) handler.Option {
	return handler.IdempotencyKey(find)
}

// Ordered runs one handler's messages in order per ordering key, see handler.Ordered.
func Ordered() handler.Option { return handler.Ordered() }

// OrderedBy is Ordered with an ordering key of its own, see handler.OrderedBy.
func OrderedBy(key func(m RawMessage) []byte) handler.Option { return handler.OrderedBy(key) }

// SkipPoisoned lets a lane go on past a poisoned message, see handler.SkipPoisoned.
func SkipPoisoned() handler.Option { return handler.SkipPoisoned() }

// TxGroup lets messages of a transactional handler share a commit, see handler.TxGroup.
func TxGroup(n int) handler.Option { return handler.TxGroup(n) }

// CircuitBreaker stops trying a handler that keeps failing, see handler.CircuitBreaker.
func CircuitBreaker(b Breaker) handler.Option { return handler.CircuitBreaker(b) }

// BatchResult is what a batch handler returns to tell its messages apart, see handler.BatchResult.
func BatchResult(results ...error) error { return handler.BatchResult(results...) }

// RetryAfter fails an attempt and sets when the next one is due, see handler.RetryAfter.
func RetryAfter(d time.Duration, err error) error { return handler.RetryAfter(d, err) }

// Poison fails an attempt for good, see handler.Poison.
func Poison(err error) error { return handler.Poison(err) }

// Snooze puts an attempt off without charge, see handler.Snooze.
func Snooze(d time.Duration) error { return handler.Snooze(d) }
