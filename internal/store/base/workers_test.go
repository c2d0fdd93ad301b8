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
// content of the column is an object, or an error that names the worker.
func FuzzHandlerKeysOfWorkers(f *testing.F) {
	f.Add("mail", `quo"te`, `{"mail":"orders"}`)
	f.Add("\u2028", "<&>", `null`)
	f.Add("", "\x01", `["a",1]`)
	f.Fuzz(func(t *testing.T, a, b, stored string) {
		var read store.WorkerState
		if store.CheckText(a, columns.MaxHandlerKey) == nil && store.CheckText(b, columns.MaxHandlerKey) == nil {
			worker := store.Worker{ID: "w", HandlerKeys: []string{a, b}, Namespaces: map[string]string{a: "n", b: a}}
			text, err := HandlerKeysJSON(worker)
			require.NoError(t, err)
			require.NoError(t, store.CheckText(text, 0), "a text column holds it")
			require.NoError(t, ParseHandlerKeys(text, &read))
			require.Equal(t, worker.Namespaces, read.Namespaces)
			require.ElementsMatch(t, slices.Collect(maps.Keys(worker.Namespaces)), read.HandlerKeys)
		}
		read = store.WorkerState{Worker: store.Worker{ID: "w"}}
		if err := ParseHandlerKeys(stored, &read); err != nil {
			require.ErrorContains(t, err, "worker w")
		}
	})
}
