package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
)

// TestMessagesWithTheSameIDAreDistinguishedByNamespace proves contract 4.4: an ID is unique within its
// channel.
func TestMessagesWithTheSameIDAreDistinguishedByNamespace(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ctx := t.Context()
		ib := inboxtest.New(t, d.DB, inbox.Channel("core", inbox.On("t", inboxtest.Do("transfer", inboxtest.Nothing))),
			inbox.Channel("partners", inbox.On("t", inboxtest.Do("import", inboxtest.Nothing),
				inboxtest.Do("report", inboxtest.Nothing))))
		_, err := ib.Accept(ctx, handler.RawMessage{Channel: "core", Type: "t", ID: "1", Content: []byte("genuine")},
			handler.RawMessage{Channel: "partners", Type: "t", ID: "1", Content: []byte("other")})
		require.NoError(t, err)
		inboxtest.Process(t, ib)
		o, err := ib.Ops(allowReplay)
		require.NoError(t, err)

		_, err = o.Message(ctx, ada, ops.MessageRef{ID: "1"})
		require.ErrorIs(t, err, ops.ErrAmbiguous)
		require.ErrorContains(t, err, `["core" "partners"]`)
		_, err = o.PreviewMessage(ctx, ada, ops.MessageRef{ID: "1"}, ops.PreviewBounds{})
		require.ErrorIs(t, err, ops.ErrAmbiguous)
		m, err := o.Message(ctx, ada, ops.MessageRef{ID: "1", Namespace: "core"})
		require.NoError(t, err)
		require.Equal(t, [2]string{"core", "genuine"}, [2]string{m.Namespace, string(m.Content)})
		require.Len(t, m.Statuses, 1)
		require.Equal(t, ops.MessageRef{ID: "1", Namespace: "core"}, m.Statuses[0].Message())
		_, err = o.Message(ctx, ada, ops.MessageRef{ID: "1", Namespace: "nobody's"})
		require.ErrorIs(t, err, ops.ErrNotFound)

		var listed []string
		for cursor := ops.Cursor(""); ; {
			page, err := o.List(ctx, ops.Filter{MessageID: "1"}, cursor, 1)
			require.NoError(t, err)
			for _, s := range page.Items {
				listed = append(listed, s.Namespace+"/"+s.HandlerKey)
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		require.Equal(t, []string{"partners/import", "partners/report", "core/transfer"}, listed)
		page, err := o.List(ctx, ops.Filter{MessageID: "1", Namespace: "core"}, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 1)
		_, err = o.List(ctx, ops.Filter{Namespace: "core"}, "", 0)
		require.ErrorIs(t, err, ops.ErrBadInput)

		replayed, err := o.Replay(ctx, ada, ops.MessageRef{ID: "1", Namespace: "partners"}, ops.Edit{MessageID: "2"})
		require.NoError(t, err)
		require.Equal(t, 2, replayed.Handlers)
		copied, err := o.Message(ctx, ada, ops.MessageRef{ID: "2"})
		require.NoError(t, err)
		require.Equal(t, [2]string{"partners", "other"}, [2]string{copied.Namespace, string(copied.Content)})

		require.ErrorIs(t, o.Delete(ctx, ada, ops.MessageRef{ID: "1"}, "1"), ops.ErrAmbiguous)
		require.NoError(t, o.Delete(ctx, ada, ops.MessageRef{ID: "1", Namespace: "partners"}, "1"))
		m, err = o.Message(ctx, ada, ops.MessageRef{ID: "1"})
		require.NoError(t, err)
		require.Equal(t, "core", m.Namespace)
	})
}
