package kafkawire

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
)

// FuzzResponseHeader checks that malformed answers are errors and take no memory for what they
// claim.
func FuzzResponseHeader(f *testing.F) {
	header := []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 't', 0, 0, 0, 1, 0, 0, 0, 3, 0, 0}
	f.Add(append(header, make([]byte, 36)...), uint8(11))
	f.Add(append(header, bytes.Repeat([]byte{0x7f}, 36)...), uint8(11))
	f.Add(bytes.Repeat([]byte{0xff}, 90), uint8(4))
	f.Fuzz(func(t *testing.T, content []byte, version uint8) {
		if len(content) > 4096 {
			return
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := readResponse(&cursor{rest: content}, firstFetchVersion+
			int16(version)%(lastFetchVersion-firstFetchVersion+1), "t", 3)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
		if err == nil {
			require.LessOrEqual(t, len(r.Records)+len(r.Aborted), len(content))
		}
	})
}

// FuzzCommitIsConfirmedOrRefused checks that only an answer about as many partitions confirms a commit.
func FuzzCommitIsConfirmedOrRefused(f *testing.F) {
	confirmed := []byte{0, 0, 0, 1, 0, 1, 't', 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}
	refused := append(confirmed[:len(confirmed)-1:len(confirmed)-1], 22)
	f.Add(confirmed)
	f.Add(refused)
	f.Add(bytes.Repeat([]byte{0xff}, 60))
	require.NoError(f, readCommitted(&cursor{rest: confirmed}, 2))
	require.ErrorIs(f, readCommitted(&cursor{rest: refused}, 2), kafka.IllegalGeneration)
	require.ErrorIs(f, readCommitted(&cursor{rest: confirmed}, 3), kafka.Unknown)
	f.Fuzz(func(t *testing.T, content []byte) {
		if readCommitted(&cursor{rest: content}, 2) == nil {
			require.GreaterOrEqual(t, len(content), 2*(4+2))
		}
	})
}
