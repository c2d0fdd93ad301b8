package kafkawire

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/stretchr/testify/require"
)

// sink is a connection that keeps what is written.
type sink struct {
	net.Conn
	kept []byte
}

func (s *sink) Write(p []byte) (int, error) {
	s.kept = append(s.kept, p...)
	return len(p), nil
}

const metadataRequest = uint16(protocol.Metadata)

// requested returns a request of an API key, a version and a body.
func requested(key, version uint16, body ...byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(2+2+4+len(body)))
	out = binary.BigEndian.AppendUint16(out, key)
	out = binary.BigEndian.AppendUint16(out, version)
	return append(append(out, 0, 0, 0, 1), body...)
}

func TestGroupConnectionsForbidCreatingTopics(t *testing.T) {
	stream := bytes.Join([][]byte{
		requested(18, 0, 1, 1, 1), requested(metadataRequest, 6, 7, 7, 1), requested(metadataRequest, 6, 1),
		requested(9, 6, 1), requested(metadataRequest, 1, 1),
		requested(metadataRequest, 8, 1), {0, 0, 0, 0}, {0, 0, 0, 1, 1}, requested(metadataRequest, 4, 0),
		requested(metadataRequest, 6), requested(metadataRequest, 6, bytes.Repeat([]byte{1}, 9000)...),
	}, nil)
	want := bytes.Join([][]byte{
		requested(18, 0, 1, 1, 1), requested(metadataRequest, 6, 7, 7, 0), requested(metadataRequest, 6, 0),
		requested(9, 6, 1), requested(metadataRequest, 1, 1),
		requested(metadataRequest, 8, 1), {0, 0, 0, 0}, {0, 0, 0, 1, 1}, requested(metadataRequest, 4, 0),
		requested(metadataRequest, 6), requested(metadataRequest, 6, append(bytes.Repeat([]byte{1}, 8999), 0)...),
	}, nil)
	for _, size := range []int{1, 2, 3, 5, 8, 11, 4096, len(stream)} {
		kept, given := &sink{}, bytes.Clone(stream)
		c := &checkedConn{Conn: kept}
		for rest := given; len(rest) > 0; {
			n := min(size, len(rest))
			written, err := c.Write(rest[:n])
			require.NoError(t, err)
			require.Equal(t, n, written)
			rest = rest[n:]
		}
		require.Equal(t, want, kept.kept, "in pieces of %d", size)
		require.Equal(t, stream, given, "the caller's bytes are left alone")
	}
}

func FuzzGroupConnectionsPassEverythingElse(f *testing.F) {
	f.Add(requested(metadataRequest, 6, 1), 3)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 3, 0, 6}, 1)
	f.Fuzz(func(t *testing.T, stream []byte, size int) {
		if size < 1 {
			return
		}
		kept := &sink{}
		c := &checkedConn{Conn: kept}
		for rest := stream; len(rest) > 0; {
			n := min(size, len(rest))
			written, err := c.Write(rest[:n])
			require.NoError(t, err)
			require.Equal(t, n, written)
			rest = rest[n:]
		}
		require.Len(t, kept.kept, len(stream))
		for i, b := range kept.kept {
			require.True(t, b == stream[i] || b == 0, "byte %d", i)
		}
	})
}
