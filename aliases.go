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
	// Drained is what ProcessPending did, see processor.Drained.
	Drained = processor.Drained
	// Deleted is what Cleanup deleted, see cleanup.Deleted.
	Deleted = cleanup.Deleted
	// UnroutedPolicy says what happens to messages no handler takes.
	UnroutedPolicy = acceptor.UnroutedPolicy
	// BadRecordPolicy says what happens to bad records.
	BadRecordPolicy = acceptor.BadRecordPolicy
)

// The policies of Unrouted and BadRecords, and the outcomes of Accept.
const (
	UnroutedIgnore = acceptor.UnroutedIgnore
	UnroutedReject = acceptor.UnroutedReject
	UnroutedHalt   = acceptor.UnroutedHalt
	BadRecordStore = acceptor.BadRecordStore
	BadRecordHalt  = acceptor.BadRecordHalt

	OutcomeAccepted  = acceptor.Accepted
	OutcomeDuplicate = acceptor.Duplicate
	OutcomeUnrouted  = acceptor.Unrouted
	OutcomeInvalid   = acceptor.Invalid
)

// LegacyKeys names the keys a handler had before, see handler.LegacyKeys.
func LegacyKeys(keys ...string) handler.Option { return handler.LegacyKeys(keys...) }

// Timeout limits each attempt of one handler, see handler.Timeout.
func Timeout(d time.Duration) handler.Option { return handler.Timeout(d) }

// WithCodec decodes one handler's bodies, see handler.WithCodec.
func WithCodec(codec any) handler.Option { return handler.WithCodec(codec) }

// RetryAfter fails an attempt and sets when the next one is due, see handler.RetryAfter.
func RetryAfter(d time.Duration, err error) error { return handler.RetryAfter(d, err) }

// Poison fails an attempt for good, see handler.Poison.
func Poison(err error) error { return handler.Poison(err) }

// Snooze puts an attempt off without charge, see handler.Snooze.
func Snooze(d time.Duration) error { return handler.Snooze(d) }
