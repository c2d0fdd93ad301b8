package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// Archived is a message of which cleanup is about to delete something.
type Archived struct {
	// Message is the message's row.
	Message models.Message
	// Statuses are those about to be deleted, in the order of acceptance;
	// none for a message that has none.
	Statuses []models.HandlerStatus
	// Stays is true if other statuses keep the message, for example those of
	// handlers with a longer Retention or a poisoned one: only Statuses are
	// deleted now, and the message is handed over again with the rest.
	Stays bool
}

// Archive takes rows that cleanup is about to delete, for example to write
// them to cheaper storage (contract 6.3). They are deleted once it has
// returned nil, and only what it was given: a status added meanwhile keeps its
// message. An error or a panic keeps all of them for a later run.
//
// At least once: after a crash between its return and the deletion, or when
// something changed meanwhile, the same rows come again. So write by primary
// key, and replace. After an error the same messages come again at once in
// smaller calls, to find those that cannot be archived. No transaction is open and no row is locked while it runs;
// it may use the inbox's own database. Its context ends after ArchiveTimeout,
// when cleanup is stopped and when its lease is lost; it must return then.
// Calls come one at a time, with up to 500 messages of 8 MiB content together
// (or a single larger one). Rejected messages, markers and audit rows are not
// handed over.
type Archive func(ctx context.Context, messages []Archived) error

// ErrArchiveFailed says that the archive function returned an error, panicked or took too
// long: its rows stay. What it returned is wrapped beside it.
var ErrArchiveFailed = errors.New("the archive function failed")

const (
	// archiveRows and archiveBytes bound a hand-over, which is in memory.
	archiveRows  = 500
	archiveBytes = 8 << 20
	// maxRefusals hand-overs in a row of which nothing could be archived end
	// the walk: what comes next would fail as well.
	maxRefusals = 10
	// maxFailedParts calls in a row that fail end the halving of a hand-over.
	// One message out of 500 takes ten.
	maxFailedParts = 30
)

// archiveBatch is one batch of the walk with the archive function between
// finding and deleting.
func (r *run) archiveBatch(ctx context.Context, req store.CleanupRequest) (store.CleanupResult, error) {
	result := store.CleanupResult{Next: req.After}
	var found store.ExpiredBatch
	err := r.bounded(ctx, func(ctx context.Context) (err error) {
		found, err = r.store.Expired(ctx, req)
		return err
	})
	if err != nil {
		return result, err
	}
	for numbers := found.MessageNumbers; len(numbers) > 0 && !r.givenUp; {
		var (
			loaded []store.ExpiredMessage
			taken  int
		)
		err := r.bounded(ctx, func(ctx context.Context) (err error) {
			loaded, taken, err = r.store.LoadExpired(ctx, req, numbers[:min(len(numbers), archiveRows, req.Limit)], archiveBytes)
			return err
		})
		if err != nil {
			return result, err
		}
		numbers = numbers[taken:]
		if len(loaded) == 0 {
			continue
		}
		if err := r.archiveAll(ctx, loaded, &result); err != nil {
			return result, err
		}
	}
	result.Next, result.Done = found.Next, found.Done
	return result, nil
}

// archiveAll hands over what was loaded and deletes it. Where the function
// fails, the halves are handed over, and theirs, down to the messages that
// cannot be archived: these keep no others. A function that fails with
// everything is not asked for the halves again until it has taken something.
func (r *run) archiveAll(ctx context.Context, loaded []store.ExpiredMessage, result *store.CleanupResult) error {
	failed := 0 // in a row
	taken := false
	halving := r.refusals == 0
	for parts := [][]store.ExpiredMessage{loaded}; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		if failed > 0 { // many that each fail soon may take long
			if err := r.lease(ctx, r.owner); err != nil {
				return err
			}
		}
		refusal, err := r.handOver(ctx, part)
		switch {
		case err != nil:
			return err
		case refusal == nil:
			failed, taken, r.refusals = 0, true, 0
			if err := r.deleteArchived(ctx, part, result); err != nil {
				return err
			}
			continue
		}
		if failed++; halving && failed >= maxFailedParts {
			halving = false
			for _, rest := range parts {
				r.keep(len(rest), refusal)
			}
			parts = nil
		}
		if half := len(part) / 2; halving && half > 0 {
			parts = append([][]store.ExpiredMessage{part[:half], part[half:]}, parts...)
			continue
		}
		r.keep(len(part), refusal)
	}
	if !taken {
		r.refusals++
		r.givenUp = r.refusals >= maxRefusals
		if r.givenUp {
			r.log.Error("inbox: the archive function fails with everything, cleanup of messages ends until its next run",
				zap.Error(r.refused))
		}
	}
	return nil
}

func (r *run) deleteArchived(ctx context.Context, archived []store.ExpiredMessage, result *store.CleanupResult) error {
	if err := r.ready(ctx); err != nil { // the function may have taken long
		return err
	}
	return r.bounded(ctx, func(ctx context.Context) error {
		part, err := r.store.DeleteExpired(ctx, archived)
		result.Messages += part.Messages
		result.Statuses += part.Statuses
		result.Passed += part.Passed
		return err
	})
}

// handOver calls the archive function and keeps the lease while it runs.
// refusal is the function's error, err the run's.
func (r *run) handOver(ctx context.Context, loaded []store.ExpiredMessage) (refusal, err error) {
	messages := make([]Archived, len(loaded))
	for i, m := range loaded {
		messages[i] = Archived{Message: m.Message, Statuses: m.Statuses, Stays: m.Stays}
	}
	limited, cancel := context.WithTimeout(ctx, r.opts.ArchiveTimeout)
	defer cancel()
	returned := make(chan error, 1)
	go func() { returned <- r.callArchive(limited, messages) }()
	renewal := time.NewTicker(r.statementTimeout)
	defer renewal.Stop()
	for {
		select {
		case err := <-returned:
			if ctx.Err() != nil {
				return nil, fmt.Errorf("archive: %w", ctx.Err())
			}
			return err, nil
		case <-renewal.C:
			if err := r.lease(ctx, r.owner); err != nil {
				cancel()
				<-returned // nothing of ours runs on after the run
				return nil, err
			}
		}
	}
}

func (r *run) callArchive(ctx context.Context, messages []Archived) error {
	if err := routine.Protect("the archive function", func() error { return r.archive(ctx, messages) }); err != nil {
		return err
	}
	return ctx.Err() // whatever it says, its time was up: it may not have waited for its writes
}

// keep notes messages that stay because the archive function failed.
func (r *run) keep(messages int, refusal error) {
	r.deleted.Unarchived += int64(messages)
	if r.refused == nil {
		r.refused = refusal
	}
	r.log.Error("inbox: the archive function failed, its messages are kept for the next run",
		zap.Int(telemetry.FieldMessages, messages), zap.Error(refusal))
}
