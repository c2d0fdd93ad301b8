package sealing

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/models"
)

// rig is an inbox with a Sealer that may change.
type rig struct {
	*fxtest.Kit
	sealer handler.Sealer

	mu  sync.Mutex
	got []string
}

// Seal and Open call the present Sealer.
func (r *rig) Seal(ctx context.Context, of handler.Identity, content []byte) ([]byte, string, error) {
	return r.sealer.Seal(ctx, of, content)
}

func (r *rig) Open(ctx context.Context, of handler.Identity, keyID string, stored []byte) ([]byte, error) {
	return r.sealer.Open(ctx, of, keyID, stored)
}

func newRig(t *testing.T, sealer handler.Sealer) *rig {
	t.Helper()
	r := &rig{sealer: sealer}
	r.Kit = fxtest.New(t, sealed(r), inbox.Channel("c", inbox.On("t", inbox.Func("h",
		func(_ context.Context, m handler.Message[[]byte]) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.got = append(r.got, string(m.Payload))
			return nil
		}))))
	return r
}

func (r *rig) accept(t *testing.T, id, content string) {
	t.Helper()
	_, err := r.Inbox.Accept(t.Context(), handler.RawMessage{Channel: "c", Type: "t", ID: id, Content: []byte(content)})
	require.NoError(t, err)
}

// stored returns the content of a message as the database has it.
func (r *rig) stored(t *testing.T, id string) []byte {
	t.Helper()
	var m models.Message
	require.NoError(t, r.Inbox.DB().Clauses(r.Inbox.Tables()).First(&m, "id = ?", id).Error)
	return m.Content
}

// Contract 15.
func TestKeysRotate(t *testing.T) {
	first, second := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	older, err := NewKeys("2026", map[string][]byte{"2026": first})
	require.NoError(t, err)
	newer, err := NewKeys("2027", map[string][]byte{"2026": first, "2027": second})
	require.NoError(t, err)
	r := newRig(t, older)
	r.accept(t, "a", "secret 1")
	r.sealer = newer
	r.accept(t, "b", "secret 2")
	r.accept(t, "a", "secret 1") // a duplicate, whatever key it is sealed with
	require.NotContains(t, string(r.stored(t, "a"))+string(r.stored(t, "b")), "secret")

	r.sealer = older // a process without the new key
	r.Process()
	require.Equal(t, []string{"secret 1"}, r.got)
	r.RequireFailed("b", "h")
	r.sealer = newer
	r.ProcessAll()
	require.Equal(t, []string{"secret 1", "secret 2"}, r.got)
}

func TestContentOfAnotherMessageIsPoisoned(t *testing.T) {
	keys, err := NewKeys("1", map[string][]byte{"1": make([]byte, 16)})
	require.NoError(t, err)
	r := newRig(t, keys)
	r.accept(t, "a", "1 euro")
	r.accept(t, "b", "1000 euros")
	table := r.Inbox.DB().Table(r.Inbox.Tables().Messages())
	require.NoError(t, table.Where("id = ?", "a").Update("content", r.stored(t, "b")).Error)
	r.Process()
	require.Equal(t, []string{"1000 euros"}, r.got)
	r.RequirePoisoned("a", "h")
}

func TestWrongKeysAreRefused(t *testing.T) {
	_, err := NewKeys("1", map[string][]byte{"1": make([]byte, 5)})
	require.ErrorContains(t, err, `key "1"`)
	_, err = NewKeys("2", map[string][]byte{"1": make([]byte, 16)})
	require.ErrorContains(t, err, `no key "2"`)
}

// Contract 15.
func TestLargeContentsAreKeptElsewhere(t *testing.T) {
	directory := t.TempDir()
	root, err := os.OpenRoot(directory)
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	r := newRig(t, &Claims{Store: root, Least: 100})
	large := strings.Repeat("x", 1000)
	r.accept(t, "small", "small")
	r.accept(t, "large", large)
	r.accept(t, "again", large)
	require.Len(t, r.stored(t, "large"), 64)
	require.Equal(t, "small", string(r.stored(t, "small")))
	objects, err := os.ReadDir(directory)
	require.NoError(t, err)
	require.Len(t, objects, 1)
	r.Process()
	require.ElementsMatch(t, []string{"small", large, large}, r.got)

	r.accept(t, "lost", large+"lost")
	name := string(r.stored(t, "lost"))
	require.NoError(t, root.Remove(name))
	r.accept(t, "changed", large+"changed")
	require.NoError(t, root.WriteFile(string(r.stored(t, "changed")), []byte("other"), 0o600))
	r.Process()
	r.RequirePoisoned("lost", "h")
	r.RequirePoisoned("changed", "h")
}
