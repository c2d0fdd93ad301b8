package inbox

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
)

// progressHeartbeats is how many HeartbeatIntervals pass between two records of the consumers' progress. Deletions are
// late by that much, which retentions do not notice, and each partition costs a write.
const progressHeartbeats = 6

// recordProgressUntilStopped records the consumers' progress at intervals.
func (ib *Inbox) recordProgressUntilStopped(ctx context.Context) {
	failing := condition.New(ib.log, ib.cfg.clock, zap.WarnLevel, "record of what partitions have caught up to",
		"cleanup deletes later")
	for routine.Sleep(ctx, progressHeartbeats*ib.cfg.options.Processor.HeartbeatInterval) {
		err := routine.Protect("recording progress", func() error { return ib.writeProgress(ctx) })
		if err == nil {
			failing.End(nil)
		} else if ctx.Err() == nil {
			failing.Begin(nil, err)
		}
	}
}

// lastProgressTimeout bounds the record at a stop.
const lastProgressTimeout = 2 * time.Second

// recordLastProgress records the last progress of the stopped consumers. The next process finds less to wait for.
func (ib *Inbox) recordLastProgress(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastProgressTimeout)
	defer cancel()
	if err := ib.recordProgress(ctx); err != nil {
		ib.log.Warn("inbox: what partitions have caught up to is not recorded, cleanup deletes later", zap.Error(err))
	}
}

// recordProgress stores how far this process's consumers have read each partition, so that every cleanup of the inbox
// knows it, in any process (contract 6.5). It does nothing in a process without consumers.
func (ib *Inbox) recordProgress(ctx context.Context) error {
	if len(ib.currentConsumers()) == 0 {
		return nil
	}
	return ib.writeProgress(ctx)
}

// currentConsumers returns the consumers of the current run. There are none before Start and after Stop.
func (ib *Inbox) currentConsumers() []*kafkaconsumer.Consumer {
	ib.mu.Lock()
	defer ib.mu.Unlock()
	return ib.consumers
}

// writeProgress is recordProgress, also without consumers: the store then counts for how long others are missing.
func (ib *Inbox) writeProgress(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ib.cfg.options.Processor.StatementTimeout)
	defer cancel()
	now, err := ib.store.Clock(ctx, ib.cfg.clock.Now())
	if err != nil {
		return err
	}
	read := time.Now() // after the database's clock was read, so ages are never too short
	var rows []models.Partition
	var unlisted []store.Topic
	for _, c := range ib.currentConsumers() {
		p := c.Progress()
		inline := c.Direct()
		if inline && !ib.keepsMarkers(p.Channel) {
			continue // its redeliveries need nothing that cleanup deletes
		}
		for _, t := range p.Topics {
			if t.ListedAt.IsZero() {
				unlisted = append(unlisted, store.Topic{Channel: p.Channel, GroupID: p.GroupID, Topic: t.Topic})
			}
			row := models.Partition{Channel: p.Channel, GroupID: p.GroupID, Topic: t.Topic, Partition: -1, Inline: inline,
				CaughtUpAt: before(now, read, t.ListedAt)}
			rows = append(rows, row)
			for id := range t.Partitions {
				row.Partition, row.CaughtUpAt = int32(id), before(now, read, t.CaughtUp[id])
				rows = append(rows, row)
			}
		}
	}
	return ib.store.RecordProgress(ctx, rows, unlisted, now)
}

// before converts a moment of this process to the database's clock, which showed now at read. It returns nil for the
// zero time. The monotonic clock shows how long ago the moment is, even if this machine's clock is wrong. It stands
// still while a machine is suspended: then the wall clock shows more.
func before(now, read, moment time.Time) *time.Time {
	if moment.IsZero() {
		return nil
	}
	at := now.Add(-max(read.Sub(moment), read.Round(0).Sub(moment.Round(0)), 0))
	return &at
}

// keepsMarkers reports whether an Inline channel keeps markers in the inbox's own table, where cleanup may sweep them.
func (ib *Inbox) keepsMarkers(channel string) bool {
	for _, c := range ib.cfg.channels {
		if c.name == channel && c.mode == modeInline {
			return c.keepsMarkers(ib.db)
		}
	}
	return false
}
