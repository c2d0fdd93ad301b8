package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

const (
	// progressInterval is the time between two ledger lines.
	progressInterval = 5 * time.Second
	// settlePatience is how long nothing may be finished while something is left, after all servers are up again. How long
	// all of it takes depends on the machine.
	settlePatience = 75 * time.Second
	// askTimeout is the timeout of one database query.
	askTimeout = 30 * time.Second
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

// judge prints the final figures and reports whether every promise was kept.
func (w *world) judge(began time.Time, f *fleet, l *load, m *matrix, stopped error) (whole bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	v, err := w.ledger.Verdict(ctx, w.db)
	if err != nil {
		return false, err
	}
	lanes, err := workload.ReadLanes(ctx, w.db, l.stepped())
	if err != nil {
		return false, err
	}
	p, err := workload.ReadProgress(ctx, w.db)
	if err != nil {
		return false, err
	}
	out, err := workload.ReadPublished(ctx, w.db, w.cluster.Brokers(), outTopic)
	if err != nil {
		return false, err
	}
	skipped, err := w.offsets.Skipped(ctx)
	if err != nil {
		return false, err
	}
	if err = w.offsets.CatchUp(ctx); err != nil {
		return false, err
	}
	offsets := w.offsets.Stop()
	committed, length := w.offsets.Committed()
	if v.Broken() {
		suspects, err := w.ledger.Suspects(ctx, w.db)
		if err != nil {
			return false, err
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
	for _, figure := range []struct {
		name  string
		value any
	}{
		{"produced", v.Produced}, {"accepted", v.Accepted}, {"completed", v.Completed}, {"poisoned", v.Poisoned},
		{"pending", v.Pending},
		{"reruns", v.Reruns}, {"missing", v.Missing}, {"skipped", skipped}, {"doubled", v.Doubled},
		{"misjudged", v.Misjudged}, {"unknown", v.Unknown}, {"deleted", p.Deleted},
		{"steps", lanes.Steps}, {"steps_missing", lanes.Missing}, {"steps_misordered", lanes.TxOutOfOrder},
		{"steps_doubled", lanes.Doubled},
		{"published", out.Messages}, {"published_again", out.Records - out.Messages}, {"published_missing", out.Missing},
		{"published_unknown", out.Unknown}, {"published_misordered", out.OutOfOrder},
		{"offset_commits", offsets.Commits}, {"committed_backwards", offsets.Backwards},
		{"committed_past_unstored", offsets.PastUnstored},
		{"uncommitted", length - committed}, {"worker_failures", f.failures.Load()},
		{"worker_peak_rss_mib", f.rss.Load() / 1024}, {"seconds", fmt.Sprintf("%.1f", time.Since(began).Seconds())},
	} {
		fmt.Printf("%s: %v\n", figure.name, figure.value)
	}
	m.print()
	missed := m.missed()
	if len(missed) > 0 {
		w.logf("never happened: %s", strings.Join(missed, ", "))
	}
	if p.Deleted == 0 {
		w.logf("cleanup deleted nothing")
	}
	return !v.Broken() && len(missed) == 0 && skipped == 0 && offsets.Backwards == 0 && offsets.PastUnstored == 0 &&
		lanes.Missing+lanes.TxOutOfOrder+lanes.Doubled == 0 &&
		out.Messages > 0 && out.Missing+out.Unknown+out.OutOfOrder == 0 && p.Deleted > 0 && offsets.Commits > 0 &&
		committed == length && f.failures.Load() == 0, nil
}
