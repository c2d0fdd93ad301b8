package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

const (
	// progressInterval is the time between two ledger lines.
	progressInterval = 5 * time.Second
	// settlePatience is how long nothing may be finished while something is left, after all servers are up again. How long
	// all of it takes depends on the machine.
	settlePatience = 75 * time.Second
	// askTimeout is the timeout of one database query, and judgeTimeout that of all that judge.
	askTimeout   = 30 * time.Second
	judgeTimeout = 10 * time.Minute
)

// reportProgress prints the ledger repeatedly until ctx ends.
func (w *world) reportProgress(ctx context.Context) {
	for pause(ctx, progressInterval) {
		ask, cancel := context.WithTimeout(ctx, progressInterval)
		p, err := workload.ReadProgress(ask, w.db)
		cancel()
		committed, length := w.offsets.Committed()
		if err != nil {
			w.logf("ledger: produced %d, committed %d of %d, the database is away", w.ledger.Count(), committed, length)
			continue
		}
		w.logf("ledger: produced %d, accepted %d, completed %d, poisoned %d, pending %d, processing %d, rejected %d, "+
			"deleted %d, committed %d of %d", w.ledger.Count(), p.Messages, p.Completed, p.Poisoned, p.Pending, p.Processing,
			p.Rejected, p.Deleted, committed, length)
	}
}

var errUnsettled = errors.New("something is left to do though everything is up again")

// settle waits until everything produced is acknowledged, handled and committed.
func (w *world) settle(l *load) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stuck := time.AfterFunc(settlePatience, cancel)
	defer stuck.Stop()
	flushed := l.feed.Flush(ctx)
	for ended := 0; ; {
		p, err := workload.ReadProgress(ctx, w.db)
		if p.Ended() > ended {
			ended = p.Ended()
			stuck.Reset(settlePatience)
		}
		lanes, laneErr := workload.ReadLanes(ctx, w.db, l.stepped())
		unpublished, outErr := workload.ReadUnpublished(ctx, w.db)
		err = errors.Join(err, laneErr, outErr)
		committed, length := w.offsets.Committed()
		if err == nil && w.ledger.Settled(p) && lanes.Missing == 0 && unpublished == 0 && committed == length {
			return flushed
		}
		if !pause(ctx, 200*time.Millisecond) {
			return errors.Join(flushed, err, fmt.Errorf("%w: %+v, %+v, %d not published, committed %d of %d", errUnsettled, p,
				lanes, unpublished, committed, length))
		}
	}
}

// judge returns the final figures, and prints what is suspect.
func (w *world) judge(f *fleet, l *load, stopped error) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), judgeTimeout)
	defer cancel()
	v, err := w.ledger.Verdict(ctx, w.db)
	if err != nil {
		return nil, err
	}
	lanes, err := workload.ReadLanes(ctx, w.db, l.stepped())
	if err != nil {
		return nil, err
	}
	excess, err := workload.ReadExcess(ctx, w.db)
	if err != nil {
		return nil, err
	}
	p, err := workload.ReadProgress(ctx, w.db)
	if err != nil {
		return nil, err
	}
	out, err := workload.ReadPublished(ctx, w.db, w.cluster.Brokers(), outTopic, l.sent)
	if err != nil {
		return nil, err
	}
	skipped, err := w.offsets.Skipped(ctx)
	if err != nil {
		return nil, err
	}
	if err = w.offsets.CatchUp(ctx); err != nil {
		return nil, err
	}
	offsets := w.offsets.Stop()
	committed, length := w.offsets.Committed()
	if v.Broken() {
		suspects, err := w.ledger.Suspects(ctx, w.db)
		if err != nil {
			return nil, err
		}
		for _, suspect := range suspects {
			w.logf("suspect: %s", suspect)
		}
	}
	for _, detail := range offsets.Details {
		w.logf("offsets: %s", detail)
	}
	if stopped != nil {
		f.failures.Add(1)
		w.logf("a worker did not stop in order: %v", stopped)
	}
	figures := map[string]int64{"offset_commits": int64(offsets.Commits), "uncommitted": length - committed,
		"worker_failures": f.failures.Load(), "worker_peak_rss_mib": f.rss.Load() / 1024}
	for name, value := range map[string]int{
		"produced": v.Produced, "accepted": v.Accepted, "completed": v.Completed, "poisoned": v.Poisoned,
		"pending": v.Pending, "reruns": v.Reruns, "missing": v.Missing, "skipped": skipped, "doubled": v.Doubled,
		"misjudged": v.Misjudged, "unknown": v.Unknown, "deleted": p.Deleted, "deleted_open": v.DeletedOpen,
		"steps": lanes.Steps, "steps_missing": lanes.Missing, "steps_misordered": lanes.TxOutOfOrder,
		"steps_doubled": lanes.Doubled, "steps_excess": excess,
		"published": out.Messages, "published_again": out.Records - out.Messages, "published_missing": out.Missing,
		"published_unknown": out.Unknown, "published_misordered": out.OutOfOrder,
		"committed_backwards": offsets.Backwards, "committed_past_unstored": offsets.PastUnstored,
	} {
		figures[name] = int64(value)
	}
	return figures, nil
}
