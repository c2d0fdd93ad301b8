package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/store"
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
// key, and replace. No transaction is open and no row is locked while it runs;
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
	// maxRefusals hand-overs in a row that fail end the walk: what comes next
	// would fail as well. Fewer do not, so that one message that cannot be
	// archived keeps no others.
	maxRefusals = 10
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
	for ids := found.MessageIDs; len(ids) > 0 && !r.givenUp; {
		var (
			loaded []store.ExpiredMessage
			taken  int
		)
		err := r.bounded(ctx, func(ctx context.Context) (err error) {
			loaded, taken, err = r.store.LoadExpired(ctx, req, ids[:min(len(ids), archiveRows, req.Limit)], archiveBytes)
			return err
		})
		if err != nil {
			return result, err
		}
		ids = ids[taken:]
		if len(loaded) == 0 {
			continue
		}
		archived, err := r.handOver(ctx, loaded)
		if err != nil {
			return result, err
		}
		if !archived {
			continue
		}
		if err := r.ready(ctx); err != nil { // the function may have taken long
			return result, err
		}
		err = r.bounded(ctx, func(ctx context.Context) error {
			part, err := r.store.DeleteExpired(ctx, loaded)
			result.Messages += part.Messages
			result.Statuses += part.Statuses
			result.Passed += part.Passed
			return err
		})
		if err != nil {
			return result, err
		}
	}
	result.Next, result.Done = found.Next, found.Done
	return result, nil
}

// handOver calls the archive function and keeps the lease while it runs. It
// reports false if the function failed; its error is the run's.
func (r *run) handOver(ctx context.Context, loaded []store.ExpiredMessage) (bool, error) {
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
				return false, fmt.Errorf("archive: %w", ctx.Err())
			}
			if err == nil {
				r.refusals = 0
				return true, nil
			}
			r.refuse(len(messages), err)
			return false, nil
		case <-renewal.C:
			if err := r.lease(ctx, r.owner); err != nil {
				cancel()
				<-returned // nothing of ours runs on after the run
				return false, err
			}
		}
	}
}

func (r *run) callArchive(ctx context.Context, messages []Archived) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the archive function panicked: %v", v)
		}
	}()
	if err := r.archive(ctx, messages); err != nil {
		return err
	}
	return ctx.Err() // whatever it says, its time was up: it may not have waited for its writes
}

func (r *run) refuse(messages int, err error) {
	r.deleted.Unarchived += int64(messages)
	r.refusals++
	r.givenUp = r.refusals >= maxRefusals
	if r.refused == nil {
		r.refused = err
	}
	r.log.Error("inbox: the archive function failed, its messages are kept for the next run", zap.Int("messages", messages),
		zap.Bool("gives_up", r.givenUp), zap.Error(err))
}
