package memstore_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
)

// BenchmarkFullStore measures the memory of a store with the default bound, full of UUIDs of one
// handler: the figure at Options.MaxKeys.
func BenchmarkFullStore(b *testing.B) {
	for b.Loop() {
		before := heap()
		s, err := memstore.New()
		require.NoError(b, err)
		keys := memstore.DefaultOptions().MaxKeys
		for range keys {
			run := idempotent.Run{Key: idempotent.Key{MessageID: uuid.NewString(), HandlerKey: "billing"}}
			_, err := s.Run(b.Context(), run, func(context.Context) error { return nil })
			require.NoError(b, err)
		}
		held := float64(heap() - before)
		require.Equal(b, keys, s.Len()) // also keeps the store reachable until here
		b.ReportMetric(held/1e6, "MB")
		b.ReportMetric(held/float64(keys), "B/key")
	}
}

// heap returns the size of the reachable memory.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // the contents of pools are collected after two cycles
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
