package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/models"
)

// Archived is a message of which cleanup is about to delete rows.
type Archived struct {
	// Message is the message's row.
	Message models.Message
	// KeyID is the ID of the key with which Message.Content is sealed; empty if it is not (contract 15).
	KeyID string
	// Statuses are the statuses about to be deleted, in the order of acceptance. They are empty if the message has none.
	Statuses []models.HandlerStatus
	// Stays is true if other statuses keep the message, such as a poisoned one, or one of a handler with a longer
	// Retention. Only Statuses are deleted now; the message is passed again with the rest.
	Stays bool
}

// Archive receives rows that cleanup is about to delete, for example to write them to cheaper storage (contract 6.3).
// They are deleted once it has returned nil. Only rows that were passed are deleted: a status that was added in between
// keeps its message. An error or a panic keeps all of them for a later run.
//
// It is called at least once for each row: after a crash between its return and the deletion, or if a row changed in
// between, the same rows are passed again. So write by primary key, and replace. After an error the same messages are
// passed again at once in smaller calls, to find those that cannot be archived.
//
// No transaction is open and no row is locked while it runs; it may use the inbox's own database.
// Its context ends after ArchiveTimeout, when cleanup is stopped and when its lease is lost; it
// must return then. Calls come one at a time, with up to 500 messages of 8 MiB content together (or
// a single larger one). Rejected messages, markers and audit rows are not passed.
type Archive func(ctx context.Context, messages []Archived) error

// ErrArchiveFailed says that the archive function returned an error, panicked or took too long. Its
// rows stay. The error that it returned is wrapped, too.
var ErrArchiveFailed = errors.New("the archive function failed")

const (
	// archiveRows and archiveBytes limit what one call of the archive function gets, which is held in memory.
	archiveRows  = 500
	archiveBytes = 8 << 20
	// maxRefusals is how many batches in a row may fail entirely before the walk ends: later ones would fail, too.
	maxRefusals = 10
	// maxFailedParts is how many failed calls in a row end the halving of a batch. Finding one bad
	// message out of 500 takes ten.
	maxFailedParts = 30
)

// archiveBatch does one batch of the walk with the archive function between finding and deleting.
func (r *run) archiveBatch(ctx context.Context, req store.CleanupRequest) (store.CleanupResult, error) {
	result := store.CleanupResult{Next: req.After}
	var found store.ExpiredBatch
	err := r.bounded(ctx, func(ctx context.Context) (err error) {
		found, err = r.cfg.Store.Expired(ctx, req)
		return err
	})
	if err != nil {
		return result, err
	}
	for numbers := found.MessageNumbers; len(numbers) > 0 && !r.givenUp; {
		var loaded []store.ExpiredMessage
		var read int
		err := r.bounded(ctx, func(ctx context.Context) (err error) {
			next := numbers[:min(len(numbers), archiveRows, req.Limit)]
			loaded, read, err = r.cfg.Store.LoadExpired(ctx, req, next, archiveBytes)
			return err
		})
		if err != nil {
			return result, err
		}
		numbers = numbers[read:]
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

// archiveAll passes the loaded messages to the archive function and deletes them. If the function fails, it passes the
// halves, and then their halves, down to the messages that cannot be archived, so that these keep no others. If the
// function has failed with a whole batch, batches are not halved again until it has accepted something.
func (r *run) archiveAll(ctx context.Context, loaded []store.ExpiredMessage, result *store.CleanupResult) error {
	failed := 0 // in a row
	accepted := false
	halving := r.refusals == 0
	for parts := [][]store.ExpiredMessage{loaded}; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		if failed > 0 { // renew the lease: many calls that each fail quickly may take long together
			if err := r.lease(ctx, r.owner); err != nil {
				return err
			}
		}
		refusal, err := r.handOver(ctx, part)
		switch {
		case err != nil:
			return err
		case refusal == nil:
			failed, accepted, r.refusals = 0, true, 0
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
	if !accepted {
		r.refusals++
		r.givenUp = r.refusals >= maxRefusals
		if r.givenUp {
			r.cfg.Logger.Error("inbox: the archive function fails with everything, cleanup of messages ends until its next run",
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
		part, err := r.cfg.Store.DeleteExpired(ctx, archived)
		result.Messages += part.Messages
		result.Statuses += part.Statuses
		result.Passed += part.Passed
		return err
	})
}

// handOver calls the archive function and renews the lease while it runs. refusal is the function's
// error, err an error that ends the run.
func (r *run) handOver(ctx context.Context, loaded []store.ExpiredMessage) (refusal, err error) {
	messages := make([]Archived, len(loaded))
	for i, m := range loaded {
		_, seal, _ := properties.ParseSealed(m.Message.SerializedProperties) // unreadable ones name no key
		messages[i] = Archived{Message: m.Message, KeyID: seal.Key, Statuses: m.Statuses, Stays: m.Stays}
	}
	limited, cancel := context.WithTimeout(ctx, r.cfg.Options.ArchiveTimeout)
	defer cancel()
	returned := make(chan error, 1)
	go func() { returned <- r.callArchive(limited, messages) }()
	renewal := time.NewTicker(r.cfg.StatementTimeout)
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
				<-returned // the archive function must not outlive the run
				return nil, err
			}
		}
	}
}

func (r *run) callArchive(ctx context.Context, messages []Archived) error {
	if err := routine.Protect("the archive function", func() error { return r.cfg.Archive(ctx, messages) }); err != nil {
		return err
	}
	return ctx.Err() // its time was up, so even a nil does not prove that it has waited for its writes
}

// keep counts and logs messages that stay because the archive function failed.
func (r *run) keep(messages int, refusal error) {
	r.deleted.Unarchived += int64(messages)
	if r.refused == nil {
		r.refused = refusal
	}
	r.cfg.Logger.Error("inbox: the archive function failed, its messages are kept for the next run",
		zap.Int(telemetry.FieldMessages, messages), zap.Error(refusal))
}
