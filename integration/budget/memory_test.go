package budget

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// TestBacklogOfMixedSizesTakesBoundedMemory proves contract 5.2. A backlog begins with small messages,
// by which the worker judges its handlers, and ends with large ones, 200 MB together for each handler.
// Each call with a large one measures what is live.
func TestBacklogOfMixedSizesTakesBoundedMemory(t *testing.T) {
	const small, large, size = 3000, 50, 4 << 20
	w := newWire(t, quietDatabase(t), false)
	var handled, most atomic.Int64
	measure := func(_ context.Context, m handler.Message[[]byte]) error {
		if len(m.Payload) == size {
			runtime.GC()
			var s runtime.MemStats
			runtime.ReadMemStats(&s)
			live := int64(s.HeapAlloc)
			for old := most.Load(); live > old && !most.CompareAndSwap(old, live); old = most.Load() {
			}
		}
		handled.Add(1)
		return nil
	}
	ib, err := inbox.New("budget", w.DB, inbox.Channel("c", inbox.On("t", inbox.Func("a", measure), inbox.Func("b", measure))))
	require.NoError(t, err)
	require.NoError(t, ib.Migrate(t.Context()))
	accept := func(prefix string, n, size int) {
		content := slices.Repeat(payload, max(size/len(payload), 1))[:size]
		messages := make([]handler.RawMessage, n)
		for i := range messages {
			messages[i] = handler.RawMessage{Channel: "c", Type: "t", ID: fmt.Sprint(prefix, i), Content: content}
		}
		_, err := ib.Accept(t.Context(), messages...)
		require.NoError(t, err)
	}
	accept("s", small, 1)
	for i := range large / 5 {
		accept(fmt.Sprint("l", i, "-"), 5, size)
	}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, ib.Start(t.Context()))
	defer func() { require.NoError(t, ib.Stop(context.Background())) }()
	require.Eventually(t, func() bool { return handled.Load() == 2*(small+large) }, testenv.Patience, time.Millisecond)
	live := (most.Load() - int64(before.HeapAlloc)) >> 20
	t.Logf("%d MB live at most", live)
	require.LessOrEqual(t, live, int64(80), "32 MB, one for each of ten slots, and the buffers of one claim")
}
