package store

import (
	"cmp"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/models"
)

// CleanupRequest asks for one batch.
type CleanupRequest struct {
	// Cutoff: statuses completed before it go. The zero time keeps all.
	Cutoff time.Time
	// HandlerCutoffs replace Cutoff for single handler keys (contract 6.2).
	// Keys are distinct.
	HandlerCutoffs []HandlerCutoff
	// Until ends the walk: messages received at or after it are not looked
	// at. The zero time is the latest of the cutoffs, and it cannot be later:
	// nothing received after that can be old enough.
	Until time.Time
	After CleanupCursor
	// Limit is how many messages the batch looks at, at least 1.
	Limit int
}

// HandlerCutoff is one handler key's own cutoff; the zero time keeps all.
type HandlerCutoff struct {
	HandlerKey string
	Cutoff     time.Time
}

// CleanupCursor is the last message a batch looked at; the zero value is the
// beginning. One without a number is right before everything received at that
// time.
type CleanupCursor struct {
	ReceivedAt    time.Time
	MessageNumber int64
}

// CleanupResult counts what one batch deleted.
type CleanupResult struct {
	Messages int64
	Statuses int64
	// Passed counts messages with something to delete that were left alone,
	// because they were locked or had changed.
	Passed int64
	Next   CleanupCursor
	// Done is true when no message before the end is left to look at.
	Done bool
}

// ExpiredBatch is what one batch of a walk would delete of.
type ExpiredBatch struct {
	// MessageNumbers have something to delete, in the order of the walk.
	MessageNumbers []int64
	Next           CleanupCursor
	Done           bool
}

// ExpiredMessage is a message with what goes of it.
type ExpiredMessage struct {
	Message models.Message
	// Statuses are those to delete, in the order of acceptance.
	Statuses []models.HandlerStatus
	// Stays is true if the message has other statuses, which keep it.
	Stays bool
}

// Latest is the latest of the cutoffs.
func (r CleanupRequest) Latest() time.Time {
	latest := r.Cutoff
	for _, own := range r.HandlerCutoffs {
		if own.Cutoff.After(latest) {
			latest = own.Cutoff
		}
	}
	return latest
}

// until bounds the walk.
func (r CleanupRequest) until() time.Time {
	latest := r.Latest()
	if r.Until.IsZero() || r.Until.After(latest) {
		return latest
	}
	return r.Until
}

// expired says whether a status goes.
func (r CleanupRequest) expired(s models.HandlerStatus) bool {
	cutoff := r.Cutoff
	for _, own := range r.HandlerCutoffs {
		if own.HandlerKey == s.HandlerKey {
			cutoff = own.Cutoff
		}
	}
	return s.CompletedAt != nil && s.CompletedAt.Before(cutoff)
}

// candidate is a message that a walk looked at.
type candidate struct {
	CleanupCursor
	expired bool
}

// batch is what a walk found in one go.
func (r CleanupRequest) batch(candidates []candidate) ExpiredBatch {
	found := ExpiredBatch{Next: r.After, Done: len(candidates) < r.Limit}
	for _, c := range candidates {
		if c.expired {
			found.MessageNumbers = append(found.MessageNumbers, c.MessageNumber)
		}
	}
	if n := len(candidates); n > 0 {
		found.Next = candidates[n-1].CleanupCursor
		found.Next.ReceivedAt = found.Next.ReceivedAt.UTC()
	}
	return found
}

// sized is a message's place in a list and how many bytes it has.
type sized struct {
	number int64
	bytes  int64
}

// prefix cuts a list of numbers so that the messages that exist have maxBytes
// together at most, or is the first alone.
func prefix(numbers []int64, sizes []sized, maxBytes int64) []int64 {
	bytes := make(map[int64]int64, len(sizes))
	for _, s := range sizes {
		bytes[s.number] = s.bytes
	}
	var sum int64
	for i, number := range numbers {
		if sum += bytes[number]; i > 0 && sum > maxBytes {
			return numbers[:i]
		}
	}
	return numbers
}

// assemble joins messages and their statuses, in the order of the numbers. A
// message that has statuses of which none goes is left out.
func (r CleanupRequest) assemble(numbers []int64, messages []models.Message, statuses []models.HandlerStatus) []ExpiredMessage {
	slices.SortFunc(statuses, func(a, b models.HandlerStatus) int { return cmp.Compare(a.Sequence, b.Sequence) })
	byMessage := map[int64][]models.HandlerStatus{}
	for _, s := range statuses {
		byMessage[s.MessageNumber] = append(byMessage[s.MessageNumber], s)
	}
	byNumber := make(map[int64]models.Message, len(messages))
	for _, m := range messages {
		byNumber[int64(m.Number)] = m
	}
	var found []ExpiredMessage
	for _, number := range numbers {
		message, stored := byNumber[number]
		if !stored {
			continue
		}
		each := ExpiredMessage{Message: message}
		for _, s := range byMessage[number] {
			if r.expired(s) {
				each.Statuses = append(each.Statuses, s)
			} else {
				each.Stays = true
			}
		}
		if len(each.Statuses) > 0 || !each.Stays {
			found = append(found, each)
		}
	}
	return found
}

// parts lists what is to be deleted: messages that go as a whole, and statuses.
func parts(expired []ExpiredMessage) (whole []int64, statuses []string, versions []int64) {
	whole, statuses, versions = []int64{}, []string{}, []int64{} // nil would be NULL
	for _, e := range expired {
		if !e.Stays {
			whole = append(whole, int64(e.Message.Number))
		}
		for _, s := range e.Statuses {
			statuses, versions = append(statuses, s.ID), append(versions, int64(s.Version))
		}
	}
	return whole, statuses, versions
}
