package acceptor

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// AcceptGap decides whether a channel continues after a gap (contract 7.5). Under GapContinue it
// first stores the gap, and counts and logs it as an error, once however often the gap is passed.
// An error means that the database could not be used: retry the same gap.
func (a *Acceptor) AcceptGap(ctx context.Context, channel string, gap envelope.Gap) (envelope.Disposition, error) {
	if a.optionsOf(channel).OnGap == GapHalt {
		return envelope.Halt, nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StatementTimeout)
	defer cancel()
	fields := []zap.Field{
		zap.String(telemetry.FieldChannel, channel), zap.String(telemetry.FieldTopic, gap.Topic),
		zap.Int(telemetry.FieldPartition, gap.Partition),
		zap.Int64(telemetry.FieldFromOffset, gap.From), zap.Int64(telemetry.FieldToOffset, gap.To),
		zap.String(telemetry.FieldReason, gap.Reason),
	}
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
