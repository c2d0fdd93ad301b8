package acceptor

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// requestsLast is how long a request may wait for the owner of its partition. After an hour, the partition may no
// longer be as the operator saw it.
const requestsLast = time.Hour

// PartitionRequests returns operators' requests for halted partitions of a channel from the last hour, 1,000 at most
// (contract 7.10).
func (a *Acceptor) PartitionRequests(ctx context.Context, channel string) ([]models.PartitionRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	now, err := a.cfg.Store.Clock(ctx, a.cfg.Clock.Now())
	if err != nil {
		return nil, err
	}
	return a.cfg.Store.PartitionRequests(ctx, channel, now.Add(-requestsLast))
}

// CarryOut deletes a request and stores its effect, if it has one, in the same transaction (contract
// 7.10): a record as rejected, with its Err as the reason, or a gap. The result is Durable if that is
// done. It is Halt if nothing is stored, because the request is no longer there, or because the database refuses the
// effect: the request is then deleted alone. An error means that the database could not be used: call again.
func (a *Acceptor) CarryOut(parent context.Context, request models.PartitionRequest, record *envelope.Received,
	gap *envelope.Gap,
) (envelope.Disposition, error) {
	var done bool
	var err error
	switch {
	case record != nil:
		done, err = a.carryOutSkip(parent, request, *record)
	case gap != nil:
		row := a.gapRow(request.Channel, *gap)
		done, err = a.carryOutOnce(parent, request, nil, &row)
	default:
		done, err = a.carryOutOnce(parent, request, nil, nil)
	}
	fields := []zap.Field{zap.String(telemetry.FieldChannel, request.Channel),
		zap.String(telemetry.FieldTopic, request.Topic), zap.Int32(telemetry.FieldPartition, request.Partition),
		zap.Int64(telemetry.FieldOffset, request.Offset), zap.String(telemetry.FieldActor, request.Actor)}
	if err != nil {
		err = fmt.Errorf("carry out the request to %s %s/%d at offset %d: %w", request.Decision, request.Topic,
			request.Partition, request.Offset, err)
		if !store.IsData(err) {
			return envelope.Halt, err
		}
		a.cfg.Logger.Error("inbox: the database refuses what an operator requested, the partition stays halted",
			append(fields, zap.Error(err))...)
		_, err = a.carryOutOnce(parent, request, nil, nil)
		return envelope.Halt, err
	}
	switch {
	case !done:
		return envelope.Halt, nil
	case record != nil:
		a.cfg.Logger.Warn("inbox: an operator skips a record, which is kept as rejected",
			append(fields, zap.Error(record.Err))...)
	case gap != nil:
		a.cfg.Counters.OfChannel(telemetry.Gaps, request.Channel, 1)
		a.cfg.Logger.Error("inbox: records are missing, an operator has the channel go on without them", append(fields,
			zap.Int64(telemetry.FieldToOffset, gap.To), zap.String(telemetry.FieldReason, gap.Reason))...)
	}
	return envelope.Durable, nil
}

func (a *Acceptor) carryOutOnce(ctx context.Context, request models.PartitionRequest, rejected *models.RejectedMessage,
	gap *models.Gap,
) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	return a.cfg.Store.CarryOut(ctx, request, rejected, gap)
}

// carryOutSkip stores a record that an operator skips. If the database does not manage to store it, it keeps the
// record's beginning: more tries would stop the partitions that share this accept worker.
func (a *Acceptor) carryOutSkip(ctx context.Context, request models.PartitionRequest, record envelope.Received) (
	done bool, err error,
) {
	row := a.rejectedForSkip(request.Channel, record)
	at := place{channel: request.Channel, partition: partitionOf(record.Record)}
	before := a.failureAt(at)
	keep := func() (err error) {
		sealed := []models.RejectedMessage{row}
		if err = a.sealRejected(ctx, sealed); err == nil {
			done, err = a.carryOutOnce(ctx, request, &sealed[0], nil)
		}
		return err
	}
	if err := keep(); err != nil {
		err = a.slowIf(ctx, request.Channel, err, coordinatesOf(record.Record), rejectedBytes(row))
		a.noteFailure(at, before, before.rows, err)
		if slowRecord(before, err) == nil {
			return false, err
		}
		row = a.cutRejection(request.Channel, record.Record, record.Err)
		if err := keep(); err != nil {
			return false, err
		}
	}
	a.failed.Delete(at)
	return done, nil
}

// rejectedForSkip returns the row of a record that an operator skips.
func (a *Acceptor) rejectedForSkip(channel string, r envelope.Received) models.RejectedMessage {
	if keptSize(r.Record) > a.keptWhole(channel) {
		return a.cutRejection(channel, r.Record, r.Err)
	}
	return a.rejection(channel, r.Record, r.Err)
}

// AcceptGap decides whether a channel continues after a gap (contract 7.5). Under GapContinue it
// first stores the gap, and counts and logs it as an error, once however often the gap is passed.
// An error means that the database could not be used: retry the same gap.
func (a *Acceptor) AcceptGap(ctx context.Context, channel string, gap envelope.Gap) (envelope.Disposition, error) {
	if a.optionsOf(channel).OnGap == GapHalt {
		return envelope.Halt, nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	fields := []zap.Field{zap.String(telemetry.FieldChannel, channel), zap.String(telemetry.FieldTopic, gap.Topic),
		zap.Int(telemetry.FieldPartition, gap.Partition), zap.Int64(telemetry.FieldFromOffset, gap.From),
		zap.Int64(telemetry.FieldToOffset, gap.To), zap.String(telemetry.FieldReason, gap.Reason)}
	added, err := a.cfg.Store.KeepGap(ctx, a.gapRow(channel, gap))
	if err != nil {
		err = fmt.Errorf("keep the gap of %s/%d from offset %d to %d: %w", gap.Topic, gap.Partition, gap.From, gap.To, err)
		if store.IsData(err) { // retrying would not help
			a.cfg.Logger.Error("inbox: a gap cannot be kept, its partition halts", append(fields, zap.Error(err))...)
			return envelope.Halt, nil
		}
		return envelope.Halt, err
	}
	if !added { // after a crash before the offset after the gap was committed
		a.cfg.Logger.Info("inbox: a gap that is kept already is passed again", fields...)
		return envelope.Durable, nil
	}
	a.cfg.Counters.OfChannel(telemetry.Gaps, channel, 1)
	a.cfg.Logger.Error("inbox: records are missing, the channel goes on without them", fields...)
	return envelope.Durable, nil
}

func (a *Acceptor) gapRow(channel string, gap envelope.Gap) models.Gap {
	return models.Gap{ID: uuid.Must(uuid.NewV7()).String(), Channel: channel, Topic: gap.Topic,
		Partition: int32(gap.Partition), FromOffset: gap.From, ToOffset: gap.To, Reason: gap.Reason,
		FoundAt: a.cfg.Clock.Now()}
}
