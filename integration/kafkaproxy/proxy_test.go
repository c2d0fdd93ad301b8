package kafkaproxy_test

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/integration/kafkaproxy"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo starts a server that answers every frame with the same frame.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

func frame(size int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(size)), make([]byte, size)...)
}

func TestResponsesCutInTheirMiddleAreRefused(t *testing.T) {
	p, err := kafkaproxy.Start(echo(t))
	require.NoError(t, err)
	defer p.Close()
	ask := func(size int) int {
		conn, err := net.Dial("tcp", p.Address())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write(frame(size))
		require.NoError(t, err)
		answer := make([]byte, 4+size)
		n, _ := io.ReadFull(conn, answer) // incomplete if it is cut
		return n
	}
	require.Equal(t, 104, ask(100))
	p.CutAnswers(1, 50)
	require.Equal(t, 44, ask(40), "too small to be cut")
	require.Equal(t, 54, ask(100))
	require.Equal(t, 104, ask(100))
	require.Equal(t, 1, p.Cut())
	p.CutAnswers(5, 50)
	p.CutAnswers(0, 0)
	require.Equal(t, 104, ask(100))
}

// A request that is held arrives after its client has gone.
func TestHeldRequestArrivesOnceItIsReleased(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	p, err := kafkaproxy.Start(listener.Addr().String())
	require.NoError(t, err)
	defer p.Close()
	p.Hold(func(key int16, request []byte) bool { return key == 8 && string(request) == "held" })
	client, err := net.Dial("tcp", p.Address())
	require.NoError(t, err)
	broker, err := listener.Accept()
	require.NoError(t, err)
	defer func() { require.NoError(t, broker.Close()) }()
	receive := func(size int) string {
		content := make([]byte, size)
		_, err := io.ReadFull(broker, content)
		require.NoError(t, err)
		return string(content)
	}
	other, held := "\x00\x00\x00\x06\x00\x09held", "\x00\x00\x00\x06\x00\x08held"
	_, err = client.Write([]byte(other + held))
	require.NoError(t, err)
	require.Equal(t, other, receive(len(other)))
	require.Eventually(t, func() bool { return p.Held() == 1 }, testenv.Patience, time.Millisecond)
	require.NoError(t, client.Close())
	p.Release()
	require.Equal(t, held, receive(len(held)))
	require.Eventually(t, func() bool { return p.Held() == 0 }, testenv.Patience, time.Millisecond)
}

// TestResponsesAreRewrittenByTheirRequests checks that a forged response keeps the correlation ID of its
// request.
func TestResponsesAreRewrittenByTheirRequests(t *testing.T) {
	p, err := kafkaproxy.Start(echo(t))
	require.NoError(t, err)
	defer p.Close()
	conn, err := net.Dial("tcp", p.Address())
	require.NoError(t, err)
	defer conn.Close()
	ask := func(key byte) []byte {
		_, err := conn.Write([]byte{0, 0, 0, 9, 0, key, 0, 0, 1, 2, 3, 4, 5})
		require.NoError(t, err)
		size := make([]byte, 4)
		_, err = io.ReadFull(conn, size)
		require.NoError(t, err)
		answer := make([]byte, binary.BigEndian.Uint32(size))
		_, err = io.ReadFull(conn, answer)
		require.NoError(t, err)
		return answer
	}
	echoed := func(key byte) []byte { return []byte{0, key, 0, 0, 1, 2, 3, 4, 5} }
	require.Equal(t, echoed(3), ask(3))
	p.Forge(3, []byte("forged"))
	require.Equal(t, append([]byte{0, 3, 0, 0}, "forged"...), ask(3), "the first four bytes are the correlation ID")
	require.Equal(t, echoed(4), ask(4))
	p.Forge(3, nil)
	require.Equal(t, echoed(3), ask(3))
	p.Redirect("127.0.0.1:1")
	require.Equal(t, echoed(3), ask(3), "this connection was made before")
}
