package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/internal/secrets"
	"github.com/gorm-inbox/inbox/ops"
)

// defaultChunk is how many statuses are changed in one transaction.
const defaultChunk = 200

type bulkFlags struct {
	dryRun, yes bool
	chunk       int
}

func (b *bulkFlags) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&b.dryRun, "dry-run", false, "with --matching: only count")
	cmd.Flags().BoolVarP(&b.yes, "yes", "y", false, "with --matching: do not ask for confirmation")
	cmd.Flags().IntVar(&b.chunk, "chunk", defaultChunk, "with --matching: how many statuses per transaction, 1 to 1000")
}

// bulkReport is the JSON output of an action on all that match.
type bulkReport struct {
	DryRun bool
	ops.BulkResult
	// Stopped is true if the action was interrupted.
	Stopped bool
	Error   string
}

func (a *app) actOnMatching(cmd *cobra.Command, act action, args []string, filter ops.Filter, bulk *bulkFlags) error {
	switch {
	case len(args) > 0:
		return misuse("use either status IDs or --matching, not both")
	case len(changed(cmd, statusFilters)) == 0:
		return misuse("--matching requires a filter; to select everything, give each --handler")
	case bulk.chunk < 1 || bulk.chunk > ops.MaxLimit:
		return misuse("--chunk = %d: must be 1 to %d", bulk.chunk, ops.MaxLimit)
	}
	filter.States = []ops.State{ops.StatePoisoned}
	// Exclude messages received after this moment, because they were neither counted nor seen.
	if now := a.now(); filter.To.IsZero() && filter.From.Before(now) {
		filter.To = now
	}
	return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
		counted, err := act.matching(o, ctx, a.who(), filter, ops.Bulk{DryRun: true})
		if err != nil {
			return err
		}
		matched := counted.Matched
		a.say("Poisoned statuses that match: %s", count(matched))
		if bulk.dryRun || matched == (ops.Count{}) {
			if a.output == "json" {
				return writeJSON(a.out, bulkReport{DryRun: bulk.dryRun, BulkResult: counted})
			}
			return nil
		}
		if !bulk.yes {
			if err := a.confirm(ctx, fmt.Sprintf("%s them as %s? Type yes: ", act.verb, oneLine(a.actor)), "yes"); err != nil {
				return err
			}
		}
		return a.runBulk(ctx, o, act, filter, bulk, matched)
	})
}

func (a *app) runBulk(
	ctx context.Context, o *ops.Ops, act action, filter ops.Filter, bulk *bulkFlags, matched ops.Count,
) error {
	chunks, end := a.betweenChunks(ctx, a.stepTimeout())
	defer end()
	most := matched.N
	if matched.Capped {
		most = 0
	}
	result, err := act.matching(o, chunks, a.who(), filter,
		ops.Bulk{ChunkSize: bulk.chunk, Most: most, Progress: func(r ops.BulkResult) {
			a.say("%s %d of %s, skipped %d", act.done, r.Done, count(matched), r.Skipped)
			if ctx.Err() != nil {
				end()
			}
		}})
	result.Matched = matched
	report := bulkReport{BulkResult: result, Stopped: err != nil && ctx.Err() != nil}
	if err != nil {
		report.Error = secrets.Mask(err.Error())
	}
	if printed := a.print(report, func() {
		fmt.Fprintf(a.out, "%s %d, skipped %d\n", act.done, result.Done, result.Skipped)
	}); printed != nil {
		return errors.Join(err, printed)
	}
	if result.More {
		a.say("More match now than were counted. Those were not changed. Run the same command again to include them.")
	}
	if report.Stopped {
		err = fmt.Errorf("stopped: %d of %s %s; run the same command to continue", result.Done, count(matched), act.done)
	}
	if err != nil && result.Done > 0 {
		err = &codedError{exitPartly, err}
	}
	return err
}

// betweenChunks returns a context that outlasts ctx until end is called at the end of a chunk. So
// an interrupt lets the running chunk finish and be counted. A chunk that takes longer than the
// limit is cancelled and rolled back.
func (a *app) betweenChunks(ctx context.Context, limit time.Duration) (chunks context.Context, end func()) {
	chunks, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		a.say("Stopping after the current chunk. Press Ctrl-C again to end inboxctl at once.")
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-chunks.Done():
		}
	})
	return chunks, sync.OnceFunc(func() {
		cancel()
		if !stop() {
			<-ended
		}
	})
}
