package base

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	jitter "math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

const (
	// acceptAttempts bounds how often an accept is tried when it collides with another transaction.
	acceptAttempts = 5
	// acceptRounds bounds how often messages may vanish during one accept.
	acceptRounds = 10
)

// StatusRow is a status to insert.
type StatusRow struct {
	ID         string
	Number     int64 // the message's; unknown until the message is stored
	MessageID  string
	Namespace  string // the message's
	HandlerKey string
	Lane       *store.Lane
	Claim      bool
	NotBefore  time.Time
	// MessageBytes is the size of the message's content and properties.
	MessageBytes int
	message      int // index in the batch
	position     int // orders the rows of one batch as they were accepted
}

// Identity is what identifies a message (contract 4.4).
type Identity struct{ ID, Namespace string }

// FirstDue returns the next_attempt_at of a new row that is created at a time; nil if it is due at once.
func (r *StatusRow) FirstDue(created time.Time) *time.Time {
	if r.NotBefore.After(created) {
		return &r.NotBefore
	}
	return nil
}

// IdentityOf returns the identity of a message.
func IdentityOf(m *store.NewMessage) Identity { return Identity{m.ID, m.Namespace} }

// StoredNumber is a stored message with its number.
type StoredNumber struct {
	Identity
	Number int64
}

// Known is a message that was stored before.
type Known struct {
	StoredNumber
	MessageType, Source string
	ReceivedAt          time.Time
	Now                 time.Time // by the clock that judges its age: the database's, where it has one
	ContentDiffers      bool
	MessageBytes        int
}

// accepting is what the dialects do differently. Every slice of messages is sorted by ID and namespace.
type accepting interface {
	// InsertNew inserts the messages that are not stored yet and, if InsertsStatuses returns true, their statuses. It
	// returns what it inserted, and the creation time of the statuses that it inserted claimed: zero unless the worker
	// lives.
	InsertNew(ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage, statuses []StatusRow, worker string,
		now time.Time) (inserted []StoredNumber, claimedAt time.Time, err error)
	InsertsStatuses() bool
	// LockKnown keeps cleanup and other accepts away from these messages until the transaction ends. Messages that have
	// vanished are missing in the result.
	LockKnown(ctx context.Context, pool gorm.ConnPool, messages []*store.NewMessage, now time.Time) ([]Known, error)
	// LegacyKeys returns the legacy keys that programs have declared, by handler key.
	LegacyKeys(ctx context.Context, pool gorm.ConnPool) (map[string][]string, error)
	// HandlerKeys returns the statuses that these messages have under these handler keys.
	HandlerKeys(ctx context.Context, pool gorm.ConnPool, numbers []int64, keys []string) ([]HandledBy, error)
	// InsertStatuses inserts rows in their order and returns the IDs of those that did not exist yet. It claims rows,
	// as InsertNew does, only in dialects whose InsertNew inserts no statuses.
	InsertStatuses(ctx context.Context, pool gorm.ConnPool, statuses []StatusRow, worker string, now time.Time) (
		added []string, claimedAt time.Time, err error)
	DeleteStatuses(ctx context.Context, pool gorm.ConnPool, ids []string) error
	InsertRejected(ctx context.Context, pool gorm.ConnPool, rejected []models.RejectedMessage) error
}

// Transacting runs work in a transaction and commits it unless work fails, as Database.Transaction does.
type Transacting func(ctx context.Context, work func(gorm.ConnPool) error) error

// errDryRun rolls back an accept whose results alone are wanted.
var errDryRun = errors.New("a dry run is rolled back")

// AcceptRetrying accepts in a new transaction and retries if it collided with another one. last, if not nil, runs at
// the end of each such transaction, and its error rolls the transaction back.
func AcceptRetrying(ctx context.Context, in Transacting, dialect accepting, batch store.AcceptBatch,
	last func(gorm.ConnPool, []store.Accepted) error,
) ([]store.Accepted, error) {
	for attempt := 1; ; attempt++ {
		var results []store.Accepted
		err := in(ctx, func(pool gorm.ConnPool) (err error) {
			results, err = Accept(ctx, pool, dialect, batch)
			if err == nil && last != nil {
				err = last(pool, results)
			}
			if err == nil && batch.DryRun {
				err = errDryRun
			}
			return err
		})
		if err == nil {
			return results, nil
		}
		if !store.Collided(err) || attempt == acceptAttempts || ctx.Err() != nil {
			if errors.Is(err, errConflict) || errors.Is(err, errDryRun) {
				return results, nil
			}
			return nil, Doing("accept", err)
		}
		if !routine.Sleep(ctx, time.Duration(attempt)*5*time.Millisecond+jitter.N(10*time.Millisecond)) {
			return nil, Doing("accept", store.WithContextError(ctx, err))
		}
	}
}

func (c Common) AcceptTx(ctx context.Context, tx *gorm.DB, batch store.AcceptBatch) ([]store.Accepted, error) {
	pool, err := Joined(tx)
	if err != nil {
		return nil, Doing("accept", err)
	}
	results, err := Accept(ctx, pool, c.dialect, batch)
	return results, Doing("accept", err)
}

func (c Common) DeleteStatuses(ctx context.Context, pool gorm.ConnPool, ids []string) error {
	_, err := store.Exec(ctx, pool, c.Text(c.sql.AcceptDelete), listArgument(c, ids))
	return err
}

// Accept runs inside a transaction. Most batches are done after the first statement. Only messages that were stored
// before cost more statements.
func Accept(
	ctx context.Context, pool gorm.ConnPool, dialect accepting, batch store.AcceptBatch,
) ([]store.Accepted, error) {
	if err := checkBatch(batch); err != nil {
		return nil, err
	}
	results := make([]store.Accepted, len(batch.Messages))
	index := make(map[Identity]int, len(batch.Messages))
	waiting := make([]*store.NewMessage, len(batch.Messages))
	for i := range batch.Messages {
		message := &batch.Messages[i]
		if _, twice := index[IdentityOf(message)]; twice {
			return nil, fmt.Errorf("message ID %q twice in one batch, in namespace %q", message.ID, message.Namespace)
		}
		index[IdentityOf(message)] = i
		waiting[i] = message
	}
	// All accepts insert in one order, so that overlapping batches wait for each other instead of deadlocking.
	slices.SortFunc(waiting, func(a, b *store.NewMessage) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Namespace, b.Namespace))
	})
	all, statuses, err := statusRows(batch.Messages)
	if err != nil {
		return nil, err
	}

	var missing []StatusRow
	var claimedAt time.Time
	rejected := slices.Clone(batch.Rejected)
	vanished := false
	for round := 0; len(waiting) > 0; round++ {
		rows := all
		if len(waiting) < len(statuses) {
			rows = rowsOf(waiting, index, statuses)
		}
		if round == acceptRounds {
			return nil, fmt.Errorf("%w: %q and %d more", store.ErrKeepVanishing, waiting[0].ID, len(waiting)-1)
		}
		inserted, at, err := dialect.InsertNew(ctx, pool, waiting, rows, batch.Claimer, batch.Now)
		if err != nil {
			return nil, err
		}
		for _, message := range inserted {
			i := index[message.Identity]
			results[i].Inserted = true
			setNumber(statuses[i], message.Number)
		}
		claimedAt = at
		waiting = slices.DeleteFunc(waiting, func(m *store.NewMessage) bool { return results[index[IdentityOf(m)]].Inserted })
		if len(waiting) == 0 {
			break
		}
		found, err := dialect.LockKnown(ctx, pool, waiting, batch.Now)
		if err != nil {
			return nil, err
		}
		// Cleanup may have deleted a message between the two statements:
		//
		// 1. The insert finds the message and inserts nothing.
		// 2. Cleanup deletes the message.
		// 3. The lock no longer finds it.
		//
		// The next round inserts such a message as new.
		late, conflicts, err := judge(ctx, pool, dialect, found, batch, index, statuses, results)
		if err != nil {
			return nil, err
		}
		missing = append(missing, late...)
		rejected = append(rejected, conflicts...)
		seen := make(map[Identity]bool, len(found))
		for _, message := range found {
			seen[message.Identity] = true
		}
		waiting = slices.DeleteFunc(waiting, func(m *store.NewMessage) bool { return seen[IdentityOf(m)] })
		vanished = vanished || len(waiting) > 0
	}
	late, first, err := addStatuses(ctx, pool, dialect, missing, statuses, results, batch, vanished)
	if err != nil {
		return nil, err
	}
	if !dialect.InsertsStatuses() {
		claimedAt, first = late, len(results)
	}
	if !claimedAt.IsZero() {
		noteClaims(results, batch, statuses, claimedAt, first)
	}
	if len(rejected) > 0 {
		rows, err := prepareRejected(rejected, batch.Now)
		if err != nil {
			return nil, err
		}
		if err := dialect.InsertRejected(ctx, pool, rows); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// statusRows gives every status of the batch an ID, ascending in the order of acceptance. statuses[i] is the part of
// all that belongs to messages[i].
func statusRows(messages []store.NewMessage) (all []StatusRow, statuses [][]StatusRow, err error) {
	total := 0
	for i := range messages {
		total += len(messages[i].Handlers)
	}
	random := make([]byte, total*len(uuid.UUID{})) // one read for all IDs
	if _, err := rand.Read(random); err != nil {
		return nil, nil, fmt.Errorf("make status IDs: %w", err)
	}
	source := bytes.NewReader(random)
	all, statuses = make([]StatusRow, 0, total), make([][]StatusRow, len(messages))
	for i := range messages {
		first := len(all)
		for _, handler := range messages[i].Handlers {
			id, err := uuid.NewV7FromReader(source)
			if err != nil {
				return nil, nil, fmt.Errorf("make a status ID: %w", err)
			}
			all = append(all, StatusRow{ID: id.String(), MessageID: messages[i].ID, Namespace: messages[i].Namespace,
				HandlerKey: handler.HandlerKey, Lane: handler.Lane, Claim: handler.Claim, NotBefore: handler.NotBefore,
				MessageBytes: messages[i].Size(), message: i, position: len(all)})
		}
		statuses[i] = all[first:len(all):len(all)]
	}
	return all, statuses, nil
}

// setNumber sets the message number of a message's statuses.
func setNumber(statuses []StatusRow, number int64) {
	for i := range statuses {
		statuses[i].Number = number
	}
}

// rowsOf returns the statuses of some messages in the order of acceptance.
func rowsOf(messages []*store.NewMessage, index map[Identity]int, statuses [][]StatusRow) []StatusRow {
	rows := make([]StatusRow, 0, len(messages))
	for _, message := range messages {
		rows = append(rows, statuses[index[IdentityOf(message)]]...)
	}
	slices.SortFunc(rows, func(a, b StatusRow) int { return a.position - b.position })
	return rows
}

// addStatuses inserts the rows that are missing after the new messages were inserted. The sequence must follow the
// order of the batch, because lanes run in acceptance order. A known message that lacks a row may precede a new
// message, whose rows were just inserted and are not visible to others yet. Those later rows, of the messages after
// first, are then deleted and inserted again in order. With all, which is set if a vanished message was inserted after
// the others, this happens to all rows, and first is negative. Rows that were claimed with their message become
// unclaimed by it.
func addStatuses(ctx context.Context, pool gorm.ConnPool, dialect accepting, missing []StatusRow,
	statuses [][]StatusRow, results []store.Accepted, batch store.AcceptBatch, all bool,
) (claimedAt time.Time, first int, err error) {
	insert := slices.Clone(missing)
	for i := range insert {
		insert[i].Claim = false // the message was known before
	}
	first = len(results)
	if all {
		first = -1
	}
	for _, row := range missing {
		first = min(first, row.message)
	}
	var again []string
	for i, rows := range statuses {
		if !results[i].Inserted {
			continue
		}
		results[i].StatusesAdded = len(rows)
		if !dialect.InsertsStatuses() {
			insert = append(insert, rows...)
			continue
		}
		if i > first {
			for _, row := range rows {
				again = append(again, row.ID)
			}
			insert = append(insert, rows...)
		}
	}
	if len(insert) == 0 {
		return time.Time{}, first, nil
	}
	if len(again) > 0 {
		if err := dialect.DeleteStatuses(ctx, pool, again); err != nil {
			return time.Time{}, first, err
		}
	}
	slices.SortFunc(insert, func(a, b StatusRow) int { return a.position - b.position })
	added, claimedAt, err := dialect.InsertStatuses(ctx, pool, insert, batch.Claimer, batch.Now)
	if err != nil {
		return time.Time{}, first, err
	}
	inserted := make(map[string]bool, len(added))
	for _, id := range added {
		inserted[id] = true
	}
	for _, row := range missing {
		if inserted[row.ID] {
			results[row.message].StatusesAdded++
		}
	}
	return claimedAt, first, nil
}

// noteClaims adds to the results what Claim would have returned for the statuses that were inserted claimed: the
// statuses of new messages up to first in the batch.
func noteClaims(
	results []store.Accepted, batch store.AcceptBatch, statuses [][]StatusRow, claimedAt time.Time, first int,
) {
	taken := func(i int, row StatusRow) bool { return row.Claim && results[i].Inserted && i <= first }
	count := 0
	for i, rows := range statuses {
		for _, row := range rows {
			if taken(i, row) {
				count++
			}
		}
	}
	claims := make([]store.Claim, 0, count) // of all messages, in one piece
	for i, rows := range statuses {
		before := len(claims)
		for _, row := range rows {
			if !taken(i, row) {
				continue
			}
			message := asStored(batch.Messages[i], claimedAt)
			message.Number = models.MessageNumber(row.Number)
			claims = append(claims, store.Claim{
				Ref: store.Ref{StatusID: row.ID, MessageNumber: row.Number, MessageID: row.MessageID,
					HandlerKey: row.HandlerKey, Version: firstVersion, Lane: row.Lane},
				MessageBytes: row.MessageBytes, CreatedAt: claimedAt, Due: claimedAt, Message: message,
			})
		}
		if len(claims) > before {
			results[i].Claims = claims[before:len(claims):len(claims)]
		}
	}
}

// firstVersion is the version of a newly inserted status.
const firstVersion = 1

// asStored returns the message as it will be read from its row. Each call returns a copy, because handlers and the
// caller of Accept may change their bytes.
func asStored(m store.NewMessage, receivedAt time.Time) *models.Message {
	copied := m.Message
	copied.Content, copied.OrderingKey = Filled(bytes.Clone(m.Content)), bytes.Clone(m.OrderingKey)
	copied.ReceivedAt = StoredTime(receivedAt)
	return &copied
}

// StoredTime returns a time as it will be read back: UTC, in microseconds.
func StoredTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
