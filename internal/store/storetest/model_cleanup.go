package storetest

import (
	"cmp"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// walk returns one batch of messages that a cleanup reads (contract 6.1).
func (m *model) walk(req store.CleanupRequest) (batch []models.Message, next store.CleanupCursor, done bool) {
	until := req.Cutoff
	for _, own := range req.HandlerCutoffs {
		if own.Cutoff.After(until) {
			until = own.Cutoff
		}
	}
	if !req.Until.IsZero() && req.Until.Before(until) {
		until = req.Until
	}
	for _, message := range m.messages {
		behind := cmp.Or(message.ReceivedAt.Compare(req.After.ReceivedAt),
			cmp.Compare(int64(message.Number), req.After.MessageNumber)) > 0
		if behind && message.ReceivedAt.Before(until) {
			batch = append(batch, message)
		}
	}
	slices.SortFunc(batch, func(a, b models.Message) int {
		return cmp.Or(a.ReceivedAt.Compare(b.ReceivedAt), cmp.Compare(a.Number, b.Number))
	})
	done, next = len(batch) < req.Limit, req.After
	batch = batch[:min(len(batch), req.Limit)]
	if len(batch) > 0 {
		last := batch[len(batch)-1]
		next = store.CleanupCursor{ReceivedAt: last.ReceivedAt, MessageNumber: int64(last.Number)}
	}
	return batch, next, done
}

// expired returns those statuses of a message that are to be deleted, in the order of acceptance,
// and whether others stay (contract 6.1, 6.2, 6.4).
func (m *model) expired(req store.CleanupRequest, messageID string) (goes []models.HandlerStatus, stays bool) {
	for _, row := range m.rows {
		if row.MessageID != messageID {
			continue
		}
		cutoff := req.Cutoff
		for _, own := range req.HandlerCutoffs {
			if own.HandlerKey == row.HandlerKey {
				cutoff = own.Cutoff
			}
		}
		if row.CompletedAt != nil && row.CompletedAt.Before(cutoff) {
			goes = append(goes, row)
		} else {
			stays = true
		}
	}
	slices.SortFunc(goes, func(a, b models.HandlerStatus) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return goes, stays
}

// remove deletes what is expired of a message, and the message if nothing stays.
func (m *model) remove(req store.CleanupRequest, messageID string) (messages, statuses int64) {
	goes, stays := m.expired(req, messageID)
	for _, row := range goes {
		delete(m.rows, row.ID)
	}
	if !stays {
		delete(m.messages, messageID)
		messages = 1
	}
	return messages, int64(len(goes))
}

// cleanupStep walks a number of batches.
type cleanupStep struct {
	Retention time.Duration            // 0 keeps all
	Own       map[string]time.Duration // handlers' own
	Until     time.Duration            // before now; 0 is no bound
	Limit     int
	Batches   int
	// Archive loads what is to be deleted first, in parts of MaxBytes.
	Archive  bool
	MaxBytes int64
}

func drawCleanup(t *rapid.T) operation {
	retentions := rapid.SampledFrom([]time.Duration{0, time.Microsecond, time.Second, time.Hour, 24 * time.Hour})
	step := cleanupStep{
		Retention: retentions.Draw(t, "retention"),
		Own:       map[string]time.Duration{},
		Until:     rapid.SampledFrom([]time.Duration{0, 0, time.Minute, 2 * time.Hour}).Draw(t, "until"),
		Limit:     rapid.IntRange(1, 4).Draw(t, "limit"),
		Batches:   rapid.IntRange(1, 4).Draw(t, "batches"),
		Archive:   rapid.Bool().Draw(t, "archive"),
		MaxBytes:  rapid.SampledFrom([]int64{1 << 20, 1, 20}).Draw(t, "bytes"),
	}
	for _, key := range some(t, handlerKeys, 0, 2) {
		step.Own[key] = retentions.Draw(t, "own")
	}
	return step
}

func (c cleanupStep) run(m *machine) {
	before := func(d time.Duration) time.Time {
		if d == 0 {
			return time.Time{}
		}
		return m.model.now.Add(-d)
	}
	request := store.CleanupRequest{Cutoff: before(c.Retention), Until: before(c.Until), Limit: c.Limit}
	for key, retention := range c.Own {
		request.HandlerCutoffs = append(request.HandlerCutoffs,
			store.HandlerCutoff{HandlerKey: key, Cutoff: before(retention)})
	}
	m.cleaned = true
	for range c.Batches {
		batch, next, done := m.model.walk(request)
		expected := store.ExpiredBatch{Next: next, Done: done}
		var ids []string
		for _, message := range batch {
			if goes, stays := m.model.expired(request, message.ID); len(goes) > 0 || !stays {
				expected.MessageNumbers, ids = append(expected.MessageNumbers, int64(message.Number)), append(ids, message.ID)
			}
		}
		found, err := m.store.Expired(m.ctx, request)
		require.NoError(m, err)
		require.Equal(m, expected, found)
		if c.Archive {
			m.archive(request, found.MessageNumbers, ids, c.MaxBytes)
		} else {
			result := store.CleanupResult{Next: next, Done: done}
			for _, id := range ids {
				messages, statuses := m.model.remove(request, id)
				result.Messages += messages
				result.Statuses += statuses
			}
			cleaned, err := m.store.Cleanup(m.ctx, request)
			require.NoError(m, err)
			require.Equal(m, result, cleaned)
		}
		if request.After = next; done {
			break
		}
	}
}

// archive loads what is to be deleted, part by part, and deletes what was loaded.
func (m *machine) archive(request store.CleanupRequest, numbers []int64, ids []string, maxBytes int64) {
	m.Helper()
	for len(ids) > 0 {
		loaded, taken, err := m.store.LoadExpired(m.ctx, request, numbers, maxBytes)
		require.NoError(m, err)
		require.Len(m, loaded, taken, "nothing changed meanwhile")
		require.Positive(m, taken)
		var expected store.CleanupResult
		for i, message := range loaded {
			require.Equal(m, ids[i], message.Message.ID)
			require.Equal(m, string(m.model.messages[ids[i]].Content), string(message.Message.Content))
			goes, stays := m.model.expired(request, ids[i])
			require.Equal(m, stays, message.Stays)
			require.Equal(m, pairs(goes), pairs(message.Statuses), "in the order of acceptance")
			messages, statuses := m.model.remove(request, ids[i])
			expected.Messages += messages
			expected.Statuses += statuses
		}
		result, err := m.store.DeleteExpired(m.ctx, loaded)
		require.NoError(m, err)
		require.Equal(m, [2]int64{expected.Messages, expected.Statuses}, [2]int64{result.Messages, result.Statuses})
		numbers, ids = numbers[taken:], ids[taken:]
	}
}
