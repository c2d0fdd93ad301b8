package store

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

	"github.com/gorm-inbox/inbox/models"
)

const (
	// acceptAttempts bounds how often a collision is tried again.
	acceptAttempts = 5
	// acceptRounds bounds how often messages may vanish under one accept.
	acceptRounds = 10
)

// statusRow is a status to insert. Position orders the rows of one batch as
// they were accepted.
type statusRow struct {
	id         string
	number     int64 // the message's, not known before the message is stored
	messageID  string
	namespace  string // the message's
	handlerKey string
	lane       *Lane
	claim      bool
	message    int // index in the batch
	position   int
}

// identity is what names a message (contract 4.4).
type identity struct{ id, namespace string }

func (m *NewMessage) identity() identity { return identity{m.ID, m.Namespace} }

// storedNumber is a message that is stored.
type storedNumber struct {
	identity
	number int64
}

// known is a message that was there before.
type known struct {
	storedNumber
	messageType, source string
	receivedAt          time.Time
	contentDiffers      bool
}

// accepting is what the dialects do differently. Every slice of messages is
// sorted by ID and namespace.
type accepting interface {
	// insertNew inserts the messages not known yet, and their statuses if
	// insertsStatuses says so, and returns what it inserted and the
	// statuses it claimed for the worker. It may leave out the numbers of what
	// it inserted, unless they are asked for, if that was every message.
	insertNew(ctx context.Context, pool gorm.ConnPool, messages []*NewMessage, statuses []statusRow, worker string, numbers bool, now time.Time) ([]storedNumber, []claimedRow, error)
	insertsStatuses() bool
	// lockKnown keeps cleanup and other accepts away from these messages
	// until the transaction ends. Vanished ones are missing in the result.
	lockKnown(ctx context.Context, pool gorm.ConnPool, messages []*NewMessage) ([]known, error)
	// handlerKeys tells which statuses these messages have.
	handlerKeys(ctx context.Context, pool gorm.ConnPool, numbers []int64) ([]handledBy, error)
	// insertStatuses inserts rows in their order and returns the IDs of those
	// that were not there yet. It claims rows only if insertNew inserts none.
	insertStatuses(ctx context.Context, pool gorm.ConnPool, statuses []statusRow, worker string, now time.Time) ([]string, []claimedRow, error)
	deleteStatuses(ctx context.Context, pool gorm.ConnPool, ids []string) error
	insertRejected(ctx context.Context, pool gorm.ConnPool, rejected []models.RejectedMessage) error
}

// transacting commits what work did unless it fails, as database.transaction.
type transacting func(ctx context.Context, work func(gorm.ConnPool) error) error

// acceptRetrying accepts in a transaction of its own, again if two collided.
// last, if not nil, ends each such transaction; its error rolls it back.
func acceptRetrying(ctx context.Context, in transacting, dialect accepting, batch AcceptBatch, last func(gorm.ConnPool, []Accepted) error) ([]Accepted, error) {
	for attempt := 1; ; attempt++ {
		var results []Accepted
		err := in(ctx, func(pool gorm.ConnPool) (err error) {
			results, err = accept(ctx, pool, dialect, batch)
			if err == nil && last != nil {
				err = last(pool, results)
			}
			return err
		})
		if err == nil {
			return results, nil
		}
		if !collided(err) || attempt == acceptAttempts || ctx.Err() != nil {
			if errors.Is(err, errConflict) {
				return results, nil
			}
			return nil, doing("accept", err)
		}
		pause := time.NewTimer(time.Duration(attempt)*5*time.Millisecond + jitter.N(10*time.Millisecond))
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil, doing("accept", WithContextError(ctx, err))
		case <-pause.C:
		}
	}
}

// accept runs inside a transaction. Most batches are done after the first
// statement; only messages that were there before cost more.
func accept(ctx context.Context, pool gorm.ConnPool, dialect accepting, batch AcceptBatch) ([]Accepted, error) {
	if err := checkBatch(batch); err != nil {
		return nil, err
	}
	results := make([]Accepted, len(batch.Messages))
	index := make(map[identity]int, len(batch.Messages))
	waiting := make([]*NewMessage, len(batch.Messages))
	for i := range batch.Messages {
		message := &batch.Messages[i]
		if _, twice := index[message.identity()]; twice {
			return nil, fmt.Errorf("message ID %q twice in one batch, in namespace %q", message.ID, message.Namespace)
		}
		index[message.identity()] = i
		waiting[i] = message
	}
	// One order for everybody, so that overlapping batches wait for each
	// other instead of deadlocking.
	slices.SortFunc(waiting, func(a, b *NewMessage) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Namespace, b.Namespace))
	})
	all, statuses, err := statusRows(batch.Messages)
	if err != nil {
		return nil, err
	}

	var missing []statusRow
	var claimed []claimedRow
	rejected := slices.Clone(batch.Rejected)
	vanished := false
	for round := 0; len(waiting) > 0; round++ {
		rows := all
		if len(waiting) < len(statuses) {
			rows = rowsOf(waiting, index, statuses)
		}
		if round == acceptRounds {
			return nil, fmt.Errorf("message %q and %d more keep vanishing", waiting[0].ID, len(waiting)-1)
		}
		inserted, taken, err := dialect.insertNew(ctx, pool, waiting, rows, batch.Claimer, round > 0, batch.Now)
		if err != nil {
			return nil, err
		}
		for _, message := range inserted {
			i := index[message.identity]
			results[i].Inserted = true
			setNumber(statuses[i], message.number)
		}
		claimed = append(claimed, taken...)
		waiting = slices.DeleteFunc(waiting, func(m *NewMessage) bool { return results[index[m.identity()]].Inserted })
		if len(waiting) == 0 {
			break
		}
		found, err := dialect.lockKnown(ctx, pool, waiting)
		if err != nil {
			return nil, err
		}
		// Between the two statements cleanup may have deleted a message: it
		// was there for the insert and is not there for the lock. It goes
		// round again and is inserted as new.
		late, conflicts, err := judge(ctx, pool, dialect, found, batch, index, statuses, results)
		if err != nil {
			return nil, err
		}
		missing = append(missing, late...)
		rejected = append(rejected, conflicts...)
		seen := make(map[identity]bool, len(found))
		for _, message := range found {
			seen[message.identity] = true
		}
		waiting = slices.DeleteFunc(waiting, func(m *NewMessage) bool { return seen[m.identity()] })
		vanished = vanished || len(waiting) > 0
	}
	late, err := addStatuses(ctx, pool, dialect, missing, statuses, results, batch, vanished)
	if err != nil {
		return nil, err
	}
	noteClaims(results, batch, statuses, append(claimed, late.claimed...), late.unclaimed)
	if len(rejected) > 0 {
		rows, err := prepareRejected(rejected, batch.Now)
		if err != nil {
			return nil, err
		}
		if err := dialect.insertRejected(ctx, pool, rows); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// statusRows gives every status of the batch an ID, ascending in the order of
// acceptance; statuses[i], a part of all, belong to messages[i].
func statusRows(messages []NewMessage) (all []statusRow, statuses [][]statusRow, err error) {
	total := 0
	for i := range messages {
		total += len(messages[i].Handlers)
	}
	random := make([]byte, total*len(uuid.UUID{})) // asked for once
	if _, err := rand.Read(random); err != nil {
		return nil, nil, fmt.Errorf("make status IDs: %w", err)
	}
	source := bytes.NewReader(random)
	all, statuses = make([]statusRow, 0, total), make([][]statusRow, len(messages))
	for i := range messages {
		first := len(all)
		for _, handler := range messages[i].Handlers {
			id, err := uuid.NewV7FromReader(source)
			if err != nil {
				return nil, nil, fmt.Errorf("make a status ID: %w", err)
			}
			all = append(all, statusRow{id: id.String(), messageID: messages[i].ID, namespace: messages[i].Namespace,
				handlerKey: handler.HandlerKey, lane: handler.Lane, claim: handler.Claim, message: i, position: len(all)})
		}
		statuses[i] = all[first:len(all):len(all)]
	}
	return all, statuses, nil
}

// setNumber tells a message's statuses its number.
func setNumber(statuses []statusRow, number int64) {
	for i := range statuses {
		statuses[i].number = number
	}
}

// rowsOf lists the statuses of some messages in the order of acceptance.
func rowsOf(messages []*NewMessage, index map[identity]int, statuses [][]statusRow) []statusRow {
	rows := make([]statusRow, 0, len(messages))
	for _, message := range messages {
		rows = append(rows, statuses[index[message.identity()]]...)
	}
	slices.SortFunc(rows, func(a, b statusRow) int { return a.position - b.position })
	return rows
}

// addStatuses inserts what is missing after the new messages. The sequence
// must follow the batch (contract 5.12): where a known message that lacks a
// row stands before a new one, the new one's rows, inserted with the message a
// moment ago and seen by nobody yet, are taken back and follow in their turn.
// So are all of them if a vanished message was inserted after the others. What
// was claimed with its message comes back unclaimed then.
func addStatuses(ctx context.Context, pool gorm.ConnPool, dialect accepting, missing []statusRow, statuses [][]statusRow, results []Accepted, batch AcceptBatch, all bool) (late lateStatuses, err error) {
	insert := slices.Clone(missing)
	for i := range insert {
		insert[i].claim = false // the message was known before
	}
	first := len(results)
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
		if !dialect.insertsStatuses() {
			insert = append(insert, rows...)
			continue
		}
		if i > first {
			for _, row := range rows {
				again = append(again, row.id)
			}
			insert = append(insert, rows...)
		}
	}
	if len(insert) == 0 {
		return late, nil
	}
	if len(again) > 0 {
		if err := dialect.deleteStatuses(ctx, pool, again); err != nil {
			return late, err
		}
		late.unclaimed = again
	}
	slices.SortFunc(insert, func(a, b statusRow) int { return a.position - b.position })
	added, claimed, err := dialect.insertStatuses(ctx, pool, insert, batch.Claimer, batch.Now)
	if err != nil {
		return late, err
	}
	late.claimed = claimed
	inserted := make(map[string]bool, len(added))
	for _, id := range added {
		inserted[id] = true
	}
	for _, row := range missing {
		if inserted[row.id] {
			results[row.message].StatusesAdded++
		}
	}
	return late, nil
}
