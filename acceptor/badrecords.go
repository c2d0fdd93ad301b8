package acceptor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// badCount counts a partition's records in a batch, and how many of them are bad.
type badCount struct{ bad, total int }

// policyOf returns the channel's policy for bad records, but BadRecordHalt for a partition that is mostly bad.
func (in *intake) policyOf(r envelope.Record) BadRecordPolicy {
	if _, halts := in.mostlyBad[partitionOf(r)]; halts {
		return BadRecordHalt
	}
	return in.opts.BadRecords
}

// findMostlyBad finds, once for the whole batch, partitions of which more than half of the records
// are bad, and reports whether there are any. Each partition counts by itself: partitions that
// share an accept may be of other topics and other producers.
//
// At least HaltAtBadRecords must be bad: on a quiet topic each record is a batch by itself, and one bad record is no
// sign of a wrong schema. Unrouted records do not count as bad, and rejected tombstones do not count at all: a
// compacted topic may be full of them, under any schema. It finds none if bad records halt in any case.
func (in *intake) findMostlyBad(received []envelope.Received, results []envelope.Result) bool {
	if in.judged || in.opts.BadRecords == BadRecordHalt || in.opts.HaltAtBadRecords == 0 {
		return false
	}
	in.judged = true
	bad := 0
	for i := range results {
		if results[i].Err != nil {
			bad++
		}
	}
	if bad < in.opts.HaltAtBadRecords {
		return false
	}
	counts := map[partition]badCount{}
	for i, r := range results {
		if errors.Is(r.Err, envelope.ErrTombstone) {
			continue
		}
		at := partitionOf(received[i].Record)
		s := counts[at]
		s.total++
		if r.Err != nil && !isUnrouted(r.Err) {
			s.bad++
		}
		counts[at] = s
	}
	in.mostlyBad = map[partition]badCount{}
	for at, s := range counts {
		if s.bad >= in.opts.HaltAtBadRecords && s.bad > s.total/2 {
			in.mostlyBad[at] = s
		}
	}
	return len(in.mostlyBad) > 0
}

// explain adds to the errors of these partitions' bad records why they halt.
func (in *intake) explain(received []envelope.Received, results []envelope.Result) []envelope.Result {
	for i, r := range results {
		if s, halts := in.mostlyBad[partitionOf(received[i].Record)]; halts && r.Err != nil && !isUnrouted(r.Err) {
			results[i].Err = fmt.Errorf("%d of %d records of the partition in one batch are bad, this one because: %w", s.bad,
				s.total, r.Err)
		}
	}
	return results
}

// disposition applies the policy for a bad record. Unrouted ones have their own policy.
func (in *intake) disposition(r envelope.Record, err error) envelope.Disposition {
	policy := in.policyOf(r)
	switch {
	case isUnrouted(err) && in.opts.Unrouted == UnroutedHalt:
		return envelope.Halt
	case isUnrouted(err), policy == BadRecordStore:
		return envelope.Durable
	case policy == BadRecordDeadLetter:
		return envelope.DeadLetter
	default:
		return envelope.Halt
	}
}

// bad returns the result of a bad record.
func (in *intake) bad(r envelope.Record, err error) envelope.Result {
	_, mostlyBad := in.mostlyBad[partitionOf(r)]
	result := envelope.Result{Disposition: in.disposition(r, err), Err: err}
	if size, limit := keptSize(r), in.keptWhole(in.channel); size > limit {
		result.Disposition = envelope.Halt
		result.Err = fmt.Errorf("%w: it is too large to be kept as rejected or as a dead letter (%d bytes, MaxRecordBytes are "+
			"%d): raise MaxRecordBytes and resume the partition, or skip the record, which keeps its beginning", err, size, limit)
	}
	result.Skippable = result.Disposition == envelope.Halt && (!mostlyBad || isUnrouted(err))
	return result
}

func isUnrouted(err error) bool {
	reason, ok := errors.AsType[*InvalidError](err)
	return ok && reason.Reason == reasonUnrouted
}

// reason returns why a record is bad, as it is stored and published. It redacts the text before
// cutting it, so that no part of a secret is left.
func (a *Acceptor) reason(channel, rejectedID string, err error) string {
	return store.SanitizeError(a.cfg.Redactor.Error(redact.Value{Channel: channel, MessageID: rejectedID}, err.Error()))
}

// keptSize is the size of a record that is to be kept.
func keptSize(r envelope.Record) int { return max(r.Size(), r.StoredSize()) }

// keptWhole returns how large a record of a channel may be to be kept whole: as large as one that can be accepted.
func (a *Acceptor) keptWhole(channel string) int {
	if d := a.decoders[channel]; d != nil {
		return d.RecordLimit()
	}
	return envelope.DefaultDecoderConfig().MaxRecordBytes
}

// cutTo is how much of the key and of the value a cut record keeps.
const cutTo = 64 << 10

// cutRejection is rejection for a record that is too large to be kept. Its row has the beginning of key and value, the
// sizes, and a hash that identifies the record.
func (a *Acceptor) cutRejection(channel string, r envelope.Record, reason error) models.RejectedMessage {
	kept := r
	kept.Key, kept.Value = r.Key[:min(len(r.Key), cutTo)], r.Value[:min(len(r.Value), cutTo)]
	kept.Headers, kept.RawHeaders = nil, nil
	row := a.rejection(channel, kept, reason)
	row.Headers = describeCut(r)
	return row
}

// describeCut returns what stands in place of the headers of a record that is not kept whole.
func describeCut(r envelope.Record) string {
	cut := properties.CutError{KeyBytes: len(r.Key), ValueBytes: len(r.Value), HeadersBytes: len(r.RawHeaders),
		SHA256: fmt.Sprintf("%x", sha256.Sum256(r.Value))}
	for _, h := range r.Headers {
		cut.HeadersBytes += len(h.Key) + len(h.Value)
	}
	return properties.SerializeCut(cut)
}

// rejection returns the row that keeps a bad record.
func (a *Acceptor) rejection(channel string, r envelope.Record, reason error) models.RejectedMessage {
	text := ""
	if reason != nil {
		text = a.reason(channel, "", reason)
	}
	headers := properties.SerializeHeaders(r.Headers)
	if r.RawHeaders != nil {
		headers = properties.SerializeRawHeaders(r.RawHeaders)
	}
	return models.RejectedMessage{ID: uuid.Must(uuid.NewV7()).String(), Channel: channel, Topic: r.Topic,
		Partition: int32(r.Partition), Offset: r.Offset, Timestamp: r.Timestamp.UTC(), Key: r.Key, Value: r.Value,
		Headers: headers, Reason: text, RejectedAt: a.cfg.Clock.Now()}
}

// sealRejected seals the values of rejected records. A row whose value can never be sealed is kept without it, because
// more tries would stop the partitions that share this accept worker. Any other error fails the accept.
func (a *Acceptor) sealRejected(ctx context.Context, rows []models.RejectedMessage) error {
	for i := range rows {
		row := &rows[i]
		if row.Value == nil {
			continue
		}
		value, seal, err := a.cfg.Sealer.Seal(ctx, handler.Identity{Channel: row.Channel, ID: row.ID}, row.Value)
		if errors.As(err, new(*handler.PoisonError)) {
			if whole, err := rejectedRecord(*row); err == nil { // otherwise it is cut already
				row.Headers = describeCut(whole)
			}
			row.Value = nil
			row.Reason = store.SanitizeError(row.Reason + "; its value is not kept: " + a.reason(row.Channel, row.ID, err))
			continue
		}
		if err != nil {
			return &sealError{fmt.Sprintf("record to keep as rejected, of %s/%d at offset %d", row.Topic, row.Partition,
				row.Offset), err}
		}
		seal.SHA256 = nil // no one compares it
		row.Value, row.Headers = value, seal.AddToRejected(row.Headers)
	}
	return nil
}

// openRejected opens the value of a row that is accepted again.
func (a *Acceptor) openRejected(ctx context.Context, row *models.RejectedMessage) error {
	headers, seal := properties.SealOfRejected(row.Headers)
	value, err := a.cfg.Sealer.Open(ctx, handler.Identity{Channel: row.Channel, ID: row.ID}, seal, row.Value)
	if err == nil {
		row.Value, row.Headers = value, headers
	}
	return err
}

// reportBad counts and logs bad records, after the accept has succeeded: a failing accept is retried for
// as long as an outage lasts. Dead letters are counted and logged when they are acknowledged.
func (in *intake) reportBad(received []envelope.Received, results []envelope.Result) {
	if in.dryRun {
		return
	}
	if in.again {
		in.mostlyBad = nil // the caller reports a halt
	}
	for at, bad := range in.mostlyBad {
		in.cfg.Logger.Error("inbox: most records of a partition are bad, halting it instead of treating them one by one",
			zap.String(telemetry.FieldChannel, in.channel), zap.String(telemetry.FieldTopic, at.topic),
			zap.Int(telemetry.FieldPartition, at.id), zap.Int(telemetry.FieldBad, bad.bad),
			zap.Int(telemetry.FieldRecords, bad.total))
	}
	in.countEmpty(received, results)
	for i, r := range results {
		if r.Err == nil || r.Disposition == envelope.DeadLetter || in.again && r.Disposition == envelope.Halt {
			continue
		}
		if _, after := errors.AsType[*afterHaltError](r.Err); after {
			continue
		}
		in.cfg.Counters.OfChannel(telemetry.Rejected, in.channel, 1)
		what := "inbox: bad record kept as rejected"
		if r.Disposition == envelope.Halt {
			what = "inbox: partition halts before a bad record"
		}
		record := received[i].Record
		in.cfg.Logger.Error(what, zap.String(telemetry.FieldChannel, in.channel),
			zap.String(telemetry.FieldTopic, record.Topic), zap.Int(telemetry.FieldPartition, record.Partition),
			zap.Int64(telemetry.FieldOffset, record.Offset), zap.Error(r.Err))
	}
}
