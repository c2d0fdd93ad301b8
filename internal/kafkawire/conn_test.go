package kafkawire

import (
	"bytes"
	"runtime"
	"testing"

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
