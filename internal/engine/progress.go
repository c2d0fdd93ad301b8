package engine

import (
	"context"
	"slices"
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
func (e *Engine) recordProgressUntilStopped(ctx context.Context) {
	failing := condition.New(e.log, e.cfg.Clock, zap.WarnLevel, "record of what partitions have caught up to",
		"cleanup deletes later")
	for routine.Sleep(ctx, progressHeartbeats*e.cfg.Processor.HeartbeatInterval) {
		err := routine.Protect("recording progress", func() error { return e.writeProgress(ctx) })
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
func (e *Engine) recordLastProgress(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastProgressTimeout)
	defer cancel()
	if err := e.recordProgress(ctx); err != nil {
		e.log.Warn("inbox: what partitions have caught up to is not recorded, cleanup deletes later", zap.Error(err))
	}
}

// recordProgress stores how far this process's consumers have read each partition, so that every cleanup of the inbox
// knows it, in any process (contract 6.5). It does nothing in a process without consumers.
func (e *Engine) recordProgress(ctx context.Context) error {
	if len(e.currentConsumers()) == 0 {
		return nil
	}
	return e.writeProgress(ctx)
}

// currentConsumers returns the consumers of the current run. There are none before Start and after Stop.
func (e *Engine) currentConsumers() []*kafkaconsumer.Consumer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.consumers
}

// writeProgress is recordProgress, also without consumers: the store then counts for how long others are missing.
func (e *Engine) writeProgress(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Processor.StatementTimeout)
	defer cancel()
	now, err := e.store.Clock(ctx, e.cfg.Clock.Now())
	if err != nil {
		return err
	}
	read := time.Now() // after the database's clock was read, so ages are never too short
	var rows []models.Partition
	var unlisted []store.Topic
	for _, c := range e.currentConsumers() {
		p := c.Progress()
		inline := c.Direct()
		if inline && !e.keepsMarkers(p.Channel) {
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
	return e.store.RecordProgress(ctx, rows, unlisted, now)
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

func (e *Engine) keepsMarkers(channel string) bool {
	return slices.ContainsFunc(e.cfg.Channels, func(c Channel) bool {
		return c.Name == channel && c.Mode == Inline && c.keepsMarkers(e.cfg.DB)
	})
}
