package ops_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// TestReplayMakesANewMessageLinkedToItsOriginal proves contract 11.1: off by default; a new message
// linked to its original.
func TestReplayMakesANewMessageLinkedToItsOriginal(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, func(o *ops.Options) {
			o.AllowReplay = true
			o.Redact = func(redact.Value) []byte { return nil }
		})
		_, err := r.ib.Accept(t.Context(), letter())
		require.NoError(t, err)
		r.process()
		original, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "1"})
		require.NoError(t, err)

		content := []byte(`{"iban":"DE90"}`)
		accepted, err := r.ops.Replay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{Content: &content})
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(accepted.MessageID, "1-replay-"))
		require.Equal(t, 2, accepted.Handlers)
		r.process()
		require.Equal(t, []string{"mail/1", "mail/" + accepted.MessageID, "ship/1", "ship/" + accepted.MessageID},
			sorted(r.handled()))
		plain, err := r.ib.Ops()
		require.NoError(t, err)
		copied, err := plain.Message(t.Context(), ada, ops.MessageRef{ID: accepted.MessageID})
		require.NoError(t, err)
		require.Equal(t, "1", copied.OriginalID)
		require.Equal(t, content, copied.Content)
		sent := letter()
		require.Equal(t, sent.Properties.Headers, copied.Properties.Headers, "what is stored, not what is shown")
		require.Equal(t, sent.OrderingKey, copied.OrderingKey)
		require.Equal(t, sent.ContentType, copied.ContentType)
		again, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "1"})
		require.NoError(t, err)
		require.Equal(t, original, again, "the original is as it was")

		to, typ := "copy", "alone"
		accepted, err = r.ops.Replay(t.Context(), ada, ops.MessageRef{ID: accepted.MessageID},
			ops.Edit{MessageID: to, Type: &typ})
		require.NoError(t, err)
		require.Equal(t, ops.Accepted{MessageID: "copy", Outcome: "accepted", Handlers: 1}, accepted)

		// Repeat it as after an error that left open whether it was accepted.
		once := ops.MessageRef{ID: "1"}.CopyID()
		accepted, err = r.ops.Replay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{MessageID: once})
		require.NoError(t, err)
		require.Equal(t, once, accepted.MessageID)
		accepted, err = r.ops.Replay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{MessageID: once})
		require.ErrorIs(t, err, ops.ErrBadInput)
		require.Equal(t, ops.Accepted{MessageID: once}, accepted)
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		accepted, err = r.ops.Replay(canceled, ada, ops.MessageRef{ID: "1"}, ops.Edit{})
		require.Error(t, err)
		require.NotEmpty(t, accepted.MessageID)

		before := r.rows()
		audit := len(r.audit())
		_, err = r.ops.Replay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{MessageID: "copy", Type: &typ})
		require.ErrorIs(t, err, ops.ErrBadInput, "a known ID")
		nobodys := "nobody's"
		_, err = r.ops.Replay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{Type: &nobodys})
		require.ErrorIs(t, err, ops.ErrBadInput, "no handler")
		_, err = r.ops.Replay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{MessageID: strings.Repeat("x", 201)})
		require.ErrorIs(t, err, ops.ErrBadInput)
		_, err = r.ops.Replay(t.Context(), ada, ops.MessageRef{ID: "none"}, ops.Edit{})
		require.ErrorIs(t, err, ops.ErrNotFound)
		_, err = plain.Replay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{})
		require.ErrorIs(t, err, ops.ErrReplayOff)
		require.Equal(t, before, r.rows())
		require.Len(t, r.audit(), audit+1)
		require.Contains(t, r.audit(), "ada denied replay")
	})
}

func TestReplayShortensALongID(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, allowReplay)
		long := strings.Repeat("ä", 200)
		r.accept(long)
		accepted, err := r.ops.Replay(t.Context(), ada, ops.MessageRef{ID: long}, ops.Edit{})
		require.NoError(t, err)
		require.Len(t, accepted.MessageID, 36)
		copied, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: accepted.MessageID})
		require.NoError(t, err)
		require.Equal(t, long, copied.OriginalID)
	})
}
