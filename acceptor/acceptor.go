// Package acceptor validates messages, fans them out to the handlers of their channel and type, and
// persists them with one status row per handler (contract 4).
package acceptor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Acceptor persists messages for one inbox. It is safe for concurrent use.
type Acceptor struct {
	cfg      Config
	channels map[string]*Options          // the options of each declared channel
	decoders map[string]*envelope.Decoder // likewise
	unstored map[string]bool              // channels that are delivered without an inbox

	warned      sync.Map // channel and type of unrouted messages that were warned of
	rerunning   sync.Map // IDs of rejected records that run again
	emptied     sync.Map // channels whose first empty record is logged
	failed      sync.Map // places whose batch failed, with a failure each
	warnedCount int
	warnedMu    sync.Mutex
}

// Config is what an Acceptor works with. Every field is required except Namespaces, Decoders,
// NotStored, Own, Hooks, Instruments, Redactor, Sealer, NotifyTx and Reserve.
type Config struct {
	Store    store.Acceptor
	Registry *registry.Registry
	// Channels are the declared channels. A message for another channel is invalid.
	Channels []string
	// Namespaces are the namespaces of channels that share their message IDs, by channel. Every other channel is its
	// own namespace (contract 4.4).
	Namespaces map[string]string
	// Decoders decode rejected records again, by channel. A channel without one gets the default decoder.
	Decoders map[string]*envelope.Decoder
	// NotStored are the channels that are delivered without an inbox: a message that their handlers would take is invalid.
	NotStored []string
	// RunAgain runs the handlers of a rejected record of such a channel again, and returns a result for each message. bad
	// is why the record stays rejected, err anything else that kept its handlers from running.
	RunAgain func(ctx context.Context, channel string, received envelope.Received) (results []Result, bad, err error)
	// Options apply to every channel. Own replaces them for single channels.
	Options Options
	Own     map[string]Options
	// StatementTimeout bounds each transaction, and Retention is the inbox's.
	StatementTimeout, Retention time.Duration
	Clock                       clock.Clock
	Logger                      *zap.Logger
	Counters                    *telemetry.Counters
	Hooks                       handler.Hooks
	// Instruments measure and trace; nil does neither.
	Instruments *telemetry.Instruments
	// Redactor redacts why a record is bad before that is stored or published.
	Redactor redaction.Redactor
	// Sealer seals contents before they are stored (contract 15).
	Sealer sealing.Sealer
	// Wake notifies the processor, and the workers of other processes, that these handlers have new
	// statuses. It never blocks (contract 4.7).
	Wake func(handlerKeys []string)
	// WakeAt makes the processor claim once a status comes due. It never blocks.
	WakeAt func(due time.Time)
	// NotifyTx makes the commit of a caller's transaction notify the workers of all processes. If it is nil, none are.
	NotifyTx func(ctx context.Context, tx *gorm.DB, handlerKeys ...string) error
	// Reserve asks the processor for slots for so many new statuses, by handler key, to run them without a claim (contract
	// 5.17), and for memory for the bytes of their messages, counted once for each status. It is quick. A nil result means
	// that this process runs nothing. If Reserve is nil, all statuses are left to claims.
	Reserve func(wanted map[string]int, bytes int) Reservation
}

// New returns an Acceptor. It fails only on invalid options.
func New(cfg Config) (*Acceptor, error) {
	if err := cfg.Options.Validate(); err != nil {
		return nil, err
	}
	a := &Acceptor{cfg: cfg, channels: map[string]*Options{}, decoders: map[string]*envelope.Decoder{},
		unstored: map[string]bool{}}
	standard, err := envelope.NewDecoder(envelope.DefaultDecoderConfig(), cfg.Logger)
	if err != nil {
		return nil, err
	}
	for _, channel := range cfg.Channels {
		a.channels[channel] = &a.cfg.Options
		if own, has := cfg.Own[channel]; has {
			a.channels[channel] = &own
		}
		if a.decoders[channel] = cfg.Decoders[channel]; a.decoders[channel] == nil {
			a.decoders[channel] = standard
		}
	}
	for _, channel := range cfg.NotStored {
		a.unstored[channel] = true
	}
	return a, nil
}

// Accept persists messages and their statuses in one transaction and wakes the processor (contract 4.1). The results
// are in the order of the messages. If a processor of this process has free slots, new statuses run from memory,
// without being claimed first (contract 5.17).
//
// Invalid messages do not keep the others from being stored: the error then joins their *InvalidError values, and the
// results are complete. If the database or the Sealer failed and nothing is stored, the results are nil. Accepting the
// same messages again is always safe, even after an error.
func (a *Acceptor) Accept(ctx context.Context, messages ...handler.RawMessage) ([]Result, error) {
	ctx, span := a.traced(ctx, messages)
	p, err := a.plan(ctx, messages, span.Stored())
	if err == nil {
		err = a.persist(ctx, p)
	}
	span.End(err)
	if err != nil {
		return nil, err
	}
	a.report(ctx, p)
	return p.results, invalid(p.results)
}

// AcceptTx does what Accept does, inside the caller's open transaction on the inbox's database. It
// is for publishing directly and for taking messages over from an outbox (contract 4.1).
//
// If any message is invalid it fails with the joined *InvalidError values. It does so before any SQL, except for ID
// conflicts, which only the database can see: the caller must then roll back. Call Wake on the receipt after the
// caller's commit, and only then. A handler that accepts in the transaction it runs in need not call it.
func (a *Acceptor) AcceptTx(ctx context.Context, tx *gorm.DB, messages ...handler.RawMessage) (*Receipt, error) {
	if tx == nil {
		return nil, errors.New("accept in transaction: tx is nil")
	}
	ctx, span := a.traced(ctx, messages)
	p, err := a.plan(ctx, messages, span.Stored())
	if err == nil {
		err = invalid(p.results)
	}
	if err == nil && len(p.batch.Messages) > 0 {
		if err = a.persistTx(ctx, tx, p); err != nil {
			handlertx.Failed(tx, err)
		}
	}
	span.End(err)
	if err != nil {
		return nil, err
	}
	if err := invalid(p.results); err != nil {
		a.reportDiffering(p)
		return nil, err
	}
	receipt := &Receipt{Results: p.results, acceptor: a, plan: p}
	if !handlertx.AfterCommit(tx, receipt.committed) {
		if err := a.notifyAtCommit(ctx, tx, p); err != nil {
			return nil, err
		}
	}
	return receipt, nil
}

// Receipt is the result of AcceptTx.
type Receipt struct {
	// Results are in the order of the messages.
	Results []Result

	acceptor *Acceptor
	plan     *plan
	once     sync.Once
}

// Wake counts the messages and wakes the processor. Call it after the commit. Without it they are not
// counted and, unless processor.Options.Listen works, wait for the next poll, PollingInterval at most.
// Later calls do nothing. In the transaction of a handler it is called automatically.
func (r *Receipt) Wake() {
	r.once.Do(func() { r.acceptor.report(context.Background(), r.plan) })
}

// committed runs after the commit of a handler's transaction and does what Wake does. The handler may have called Wake
// before the commit, when the statuses were not visible yet, so committed wakes the processor in any case.
func (r *Receipt) committed() {
	r.Wake()
	r.acceptor.wakeFor(r.plan)
}

func (a *Acceptor) persist(ctx context.Context, p *plan) error {
	if len(p.batch.Messages) == 0 && len(p.batch.Rejected) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	dispatching := a.beginDispatch(p)
	defer dispatching.end()
	p.batch.Now = a.cfg.Clock.Now()
	took := a.timed(ctx, p)
	stored, err := a.cfg.Store.Accept(ctx, p.batch)
	took(err)
	if err != nil {
		dispatching.failed(err)
		// If the batch was committed, the next try finds duplicates, which wake no handler: wake them now. If the batch
		// was to claim statuses, the processor reconciles them instead.
		if store.MayBeCommitted(err) {
			a.wake(p, p.batch.Claimer == "")
		}
		return fmt.Errorf("accept %d messages: %w", len(p.batch.Messages), err)
	}
	p.take(stored)
	dispatching.committed(stored)
	return nil
}

func (a *Acceptor) persistTx(ctx context.Context, tx *gorm.DB, p *plan) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	p.batch.Now = a.cfg.Clock.Now()
	took := a.timed(ctx, p)
	stored, err := a.cfg.Store.AcceptTx(ctx, tx, p.batch)
	took(err)
	if err != nil {
		return fmt.Errorf("accept in transaction: %w", err)
	}
	p.take(stored)
	return nil
}

// notifyAtCommit makes the commit of the caller's transaction notify all workers, because nothing
// else learns of that commit.
func (a *Acceptor) notifyAtCommit(ctx context.Context, tx *gorm.DB, p *plan) error {
	if a.cfg.NotifyTx == nil || !p.added() || len(p.keys) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	if err := a.cfg.NotifyTx(ctx, tx, slices.Collect(maps.Keys(p.keys))...); err != nil {
		return fmt.Errorf("accept in transaction: %w", err)
	}
	return nil
}

// wakeFor wakes the processor if the plan added statuses of which it is not notified yet.
func (a *Acceptor) wakeFor(p *plan) {
	if p.added() {
		a.wake(p, !p.notified)
	}
}

// wake wakes the processor when the plan's statuses are due: those that are at once only if now is true.
func (a *Acceptor) wake(p *plan, now bool) {
	if now && len(p.keys) > 0 { // without keys Wake would wake all
		a.cfg.Wake(slices.Collect(maps.Keys(p.keys)))
	}
	if !p.due.IsZero() {
		a.cfg.WakeAt(p.due)
	}
}

// report wakes the processor, counts and calls hooks, all after the commit.
func (a *Acceptor) report(ctx context.Context, p *plan) {
	a.wakeFor(p)
	a.reportDiffering(p)
	a.reportAccepted(ctx, p, p.rows)
	for i, r := range p.results {
		m := p.messages[i]
		switch r.Outcome {
		case handler.OutcomeDuplicate:
			a.cfg.Counters.OfChannel(telemetry.Duplicates, m.Channel, 1)
		case handler.OutcomeUnrouted:
			a.cfg.Counters.OfChannel(telemetry.Unrouted, m.Channel, 1)
			a.warnUnrouted(m.Channel, m.Type)
		case handler.OutcomeInvalid:
			a.cfg.Counters.OfChannel(telemetry.Invalid, m.Channel, 1)
		}
	}
}

// reportAccepted counts the messages that were stored now, and calls the hook for each one. All calls together have
// StatementTimeout.
func (a *Acceptor) reportAccepted(ctx context.Context, p *plan, messages []int) {
	if a.cfg.Hooks.OnAccepted != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.cfg.StatementTimeout)
		defer cancel()
	}
	for _, i := range messages {
		m, r := p.messages[i], p.results[i]
		if r.Outcome != handler.OutcomeAccepted {
			continue
		}
		a.cfg.Counters.OfChannel(telemetry.Accepted, m.Channel, 1)
		event := handler.AcceptedEvent{Channel: m.Channel, MessageID: m.ID, Type: m.Type, Handlers: r.Handlers}
		if err := handler.CallHook(ctx, a.cfg.Hooks.OnAccepted, event); err != nil {
			a.cfg.Logger.Error("inbox hook OnAccepted failed", zap.String(telemetry.FieldMessageID, m.ID), zap.Error(err))
		}
	}
}

// maxDiffering bounds how many message IDs one log line names.
const maxDiffering = 20

// reportDiffering counts and logs messages with a known ID and other content. It writes one line per
// channel, so that a flood of them leaves room for other lines.
func (a *Acceptor) reportDiffering(p *plan) {
	ids := map[string][]string{}
	for i, r := range p.results {
		if r.ContentDiffers {
			channel := p.messages[i].Channel
			ids[channel] = append(ids[channel], r.MessageID)
		}
	}
	for channel, found := range ids {
		a.cfg.Counters.OfChannel(telemetry.DuplicateContentDiffers, channel, len(found))
		a.cfg.Logger.Warn("inbox: message IDs are known with other content, the content stored first counts",
			zap.String(telemetry.FieldChannel, channel),
			zap.Strings(telemetry.FieldMessageIDs, found[:min(len(found), maxDiffering)]),
			zap.Int(telemetry.FieldMessages, len(found)))
	}
}

// maxWarnedTypes bounds how many unrouted types are remembered, because types come from outside.
const maxWarnedTypes = 1000

func (a *Acceptor) warnUnrouted(channel, typ string) {
	key := [2]string{channel, typ}
	if _, warned := a.warned.Load(key); warned {
		return
	}
	a.warnedMu.Lock()
	defer a.warnedMu.Unlock()
	if _, warned := a.warned.Load(key); warned || a.warnedCount > maxWarnedTypes {
		return
	}
	a.warnedCount++
	a.warned.Store(key, true)
	if a.warnedCount > maxWarnedTypes {
		a.cfg.Logger.Warn("inbox: too many unrouted types, further ones are only counted",
			zap.Int(telemetry.FieldTypes, maxWarnedTypes))
		return
	}
	a.cfg.Logger.Warn("inbox: message type has no handler, its messages are ignored and counted",
		zap.String(telemetry.FieldChannel, channel), zap.String(telemetry.FieldMessageType, typ),
		zap.String(telemetry.FieldHandledTypes, a.cfg.Registry.Types(channel)))
}

// Result is what happened to one message.
type Result struct {
	MessageID string
	Outcome   handler.AcceptOutcome
	// Handlers counts the status rows that this accept added or, of OutcomeProcessed, the handlers that ran.
	Handlers int
	// ContentDiffers means that the duplicate's content is not the stored one (contract 4.3).
	ContentDiffers bool
	// Err is an *InvalidError for invalid messages, else nil.
	Err error
}

// The reasons of an InvalidError.
const (
	reasonUnknownChannel = "unknown_channel"
	reasonUnrouted       = "unrouted"
	reasonNotStored      = "not_stored" // its channel is delivered without an inbox
	reasonMissingID      = "missing_id"
	reasonIDTooLong      = "id_too_long"
	reasonBadID          = "bad_id"
	reasonTooLong        = "too_long"
	reasonBadText        = "bad_text"
	reasonBadProperties  = "bad_properties"
	reasonBadOrderingKey = "bad_ordering_key" // OrderedBy panicked
	reasonBadNotBefore   = "bad_not_before"   // too far ahead, or the handler's NotBefore panicked
	reasonNotSealed      = "not_sealed"       // the Sealer cannot seal it
	reasonIDConflict     = "id_conflict"
	reasonContentDiffers = "content_differs"
	reasonRefused        = "refused_by_database"
	reasonNoMessage      = "no_message" // a rejected record that holds none
	reasonCut            = "cut"        // a rejected record of which only the beginning is kept
)

// InvalidError is why one message cannot be accepted. Accepting it again unchanged fails again.
type InvalidError struct {
	// MessageID is cut to 200 characters if it is longer, and therefore no message ID.
	MessageID string
	// Reason is for programs: unknown_channel, unrouted, not_stored (its channel is delivered without an
	// inbox), missing_id, id_too_long, bad_id, too_long, bad_text, bad_properties, bad_ordering_key
	// (OrderedBy panicked), bad_not_before (more than ten years ahead, or the handler's NotBefore panicked),
	// not_sealed (the Sealer says that it cannot be), id_conflict, content_differs, refused_by_database, no_message
	// (a rejected record that holds none) or cut (one of which only the beginning is kept).
	Reason string
	// Detail is for people.
	Detail string
	// Err is the cause, if that is another error.
	Err error
}

// Error names the message ID, cut if it is overlong, and the reason.
func (e *InvalidError) Error() string {
	id, more := brief.Characters(e.MessageID, 60), ""
	if len(id) < len(e.MessageID) {
		more = "…"
	}
	text := fmt.Sprintf("message %q%s is invalid: %s", id, more, e.Reason)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.Err }

// invalid joins the errors of the invalid results, nil if there are none.
func invalid(results []Result) error {
	var problems []error
	for _, r := range results {
		if r.Err != nil {
			problems = append(problems, r.Err)
		}
	}
	return errors.Join(problems...)
}

// traced begins the span of an accept of messages.
func (a *Acceptor) traced(ctx context.Context, messages []handler.RawMessage) (context.Context, *telemetry.Accepting) {
	if !a.cfg.Instruments.Traces() || len(messages) == 0 {
		return ctx, nil
	}
	channel := messages[0].Channel
	for _, m := range messages {
		if m.Channel != channel {
			channel = telemetry.Other
		}
	}
	return a.cfg.Instruments.StartAccept(ctx, channel, func(yield func(*handler.RawMessage) bool) {
		for i := range messages {
			if !yield(&messages[i]) {
				return
			}
		}
	})
}

// tracedRecords is traced for the messages of records.
func (a *Acceptor) tracedRecords(
	ctx context.Context, channel string, received []envelope.Received,
) (context.Context, *telemetry.Accepting) {
	if !a.cfg.Instruments.Traces() {
		return ctx, nil
	}
	return a.cfg.Instruments.StartAccept(ctx, channel, func(yield func(*handler.RawMessage) bool) {
		for _, r := range received {
			for i := range r.Messages {
				if !yield(&r.Messages[i]) {
					return
				}
			}
		}
	})
}

// timed measures how long it takes to persist a plan. Call the returned function with the error of that.
func (a *Acceptor) timed(ctx context.Context, p *plan) func(error) {
	if !a.cfg.Instruments.TimesAccepts(ctx) {
		return func(error) {}
	}
	channel := ""
	for i, row := range p.rows {
		its := p.messages[row].Channel
		if i > 0 && its != channel {
			its = telemetry.Other
		}
		channel = its
	}
	if len(p.rows) == 0 && len(p.batch.Rejected) > 0 {
		channel = p.batch.Rejected[0].Channel
	}
	began := time.Now()
	return func(err error) { a.cfg.Instruments.Accepted(ctx, channel, time.Since(began), err != nil) }
}
