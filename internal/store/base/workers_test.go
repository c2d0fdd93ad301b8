package base

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
)

// FuzzHandlerKeysOfWorkers checks that a worker's handler keys come back unaltered. Any other
// content of the column is a list of keys, or lists none.
func FuzzHandlerKeysOfWorkers(f *testing.F) {
	f.Add("mail", `quo"te`, `{"mail":"orders"}`)
	f.Add("\u2028", "<&>", `null`)
	f.Add("", "\x01", `["a",1]`)
	f.Fuzz(func(t *testing.T, a, b, stored string) {
		var read store.WorkerState
		if store.CheckText(a, columns.MaxHandlerKey) == nil && store.CheckText(b, columns.MaxHandlerKey) == nil {
			worker := store.Worker{ID: "w", HandlerKeys: []string{a, b}, Namespaces: map[string]string{a: "n", b: a}}
			text := HandlerKeysJSON(worker)
			require.NoError(t, store.CheckText(text, 0), "a text column holds it")
			ParseHandlerKeys(text, &read)
			require.Equal(t, worker.Namespaces, read.Namespaces)
			require.ElementsMatch(t, slices.Collect(maps.Keys(worker.Namespaces)), read.HandlerKeys)
		}
		ParseHandlerKeys(stored, &read)
		require.NotNil(t, read.HandlerKeys)
		require.LessOrEqual(t, len(read.Namespaces), len(read.HandlerKeys))
	})
}

func TestMalformedHandlerKeysAreNoError(t *testing.T) {
	for text, keys := range map[string][]string{
		`["b", "a"]`: {"a", "b"}, `["a", 1]`: {}, `{"a": 1}`: {}, `null`: {}, ``: {},
	} {
		old := store.Worker{HandlerKeys: []string{"old"}, Namespaces: map[string]string{"old": "n"}}
		read := store.WorkerState{Worker: old}
		ParseHandlerKeys(text, &read)
		require.Equal(t, keys, read.HandlerKeys, text)
		require.Empty(t, read.Namespaces, text)
	}
}
