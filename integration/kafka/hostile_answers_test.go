package kafka

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/integration/kafkaproxy"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// forging returns a route to the rig's broker on which responses to requests with an API key are
// replaced until pass is called.
func (r *rig) forging(key kmsg.Key, content []byte) (broker string, pass func()) {
	r.t.Helper()
	proxy, err := kafkaproxy.Start(r.kafka.Brokers()[0])
	require.NoError(r.t, err)
	r.t.Cleanup(proxy.Close)
	proxy.Forge(int16(key), content)
	return proxy.Address(), func() { proxy.Forge(int16(key), nil) }
}

// assigning gives every member of a group this assignment until pass is called, as a member that
// leads the group could.
func (r *rig) assigning(assignment []byte) (pass func()) {
	var over atomic.Bool
	r.kafka.Cluster().ControlKey(int16(kmsg.SyncGroup), func(request kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.Cluster().KeepControl()
		if over.Load() {
			return nil, nil, false
		}
		response := request.ResponseKind().(*kmsg.SyncGroupResponse)
		response.MemberAssignment = assignment
		return response, nil, true
	})
	return func() { over.Store(true) }
}

// webServer is what a web server answers to bytes that are not HTTP.
const webServer = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request"

// otherServer returns the address of a server that gives each connection this answer, and waits for its end if the
// answer is empty.
func otherServer(t *testing.T, answer string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var ended sync.WaitGroup
	t.Cleanup(ended.Wait)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	ended.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			ended.Go(func() {
				defer conn.Close()
				if answer == "" {
					_, _ = io.Copy(io.Discard, conn)
					return
				}
				_, _ = conn.Read(make([]byte, 4096))
				_, _ = io.WriteString(conn, answer)
			})
		}
	})
	return listener.Addr().String()
}

// manyPartitions returns an assignment of partitions that do not exist.
func manyPartitions(n int32) []byte {
	assignment := kmsg.NewConsumerMemberAssignment()
	t := kmsg.NewConsumerMemberAssignmentTopic()
	t.Topic = topic
	for id := range n {
		t.Partitions = append(t.Partitions, id)
	}
	assignment.Topics = append(assignment.Topics, t)
	return assignment.AppendTo(nil)
}

// manyBrokers returns metadata with many brokers and no topic.
func manyBrokers(n int32) []byte {
	response := kmsg.NewPtrMetadataResponse()
	response.Version = 8 // the version that kafka-go requests
	for id := range n {
		host := fmt.Sprintf("broker-%d.kafka.internal", id)
		response.Brokers = append(response.Brokers, kmsg.MetadataResponseBroker{NodeID: id, Host: host, Port: 9092})
	}
	return response.AppendTo(nil)
}

// TestHostileResponsesCrashNothingAndTakeNoMemory proves contract 7.2 and 7.8: no broker, no other
// server at a broker's address and no member of the group can end the process or exhaust its
// memory. Health says which response is refused, and consuming begins once responses are valid.
func TestHostileResponsesCrashNothingAndTakeNoMemory(t *testing.T) {
	program := hostileProgram(t)
	huge := []byte{0x7f, 0xff, 0xff, 0xff} // as a count or as a length
	for name, test := range map[string]struct {
		says  string // by health, until pass is called
		state string
		sane  bool // the responses are valid
		begin func(r *rig) (broker string, pass func())
	}{
		"an assignment of six bytes": {`join group "g": the answer of`, "joining", false, func(r *rig) (string, func()) {
			return r.kafka.Brokers()[0], r.assigning(append([]byte{0, 1}, huge...))
		}},
		"an assignment of a million partitions": {"assigned 1000000", "joining", false, func(r *rig) (string, func()) {
			return r.kafka.Brokers()[0], r.assigning(manyPartitions(1_000_000))
		}},
		"metadata of 12 bytes": {"to Metadata is refused", "waiting", false, func(r *rig) (string, func()) {
			return r.forging(kmsg.Metadata, append(make([]byte, 4), huge...))
		}},
		"metadata of as many brokers as may be": {"do not exist", "waiting", true, func(r *rig) (string, func()) {
			return r.forging(kmsg.Metadata, manyBrokers(262_144))
		}},
		"API versions of 10 bytes": {"to ApiVersions is refused", "waiting", false, func(r *rig) (string, func()) {
			return r.forging(kmsg.ApiVersions, append(make([]byte, 2), huge...))
		}},
		"a web server": {"it speaks HTTP", "waiting", false, func(r *rig) (string, func()) {
			proxy, err := kafkaproxy.Start(otherServer(r.t, webServer))
			require.NoError(r.t, err)
			r.t.Cleanup(proxy.Close)
			return proxy.Address(), func() { proxy.Redirect(r.kafka.Brokers()[0]) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			require.NoError(t, r.kafka.Produce(topic, kafkatest.Record{Value: []byte("1")}))
			broker, pass := test.begin(r)
			command := hostile(t, program, "-broker", broker, "-topic", topic, "-db", testenv.SQLiteDSN(t),
				"-last", "1", "-says", test.says)
			output, err := command.StdoutPipe()
			require.NoError(t, err)
			var errors bytes.Buffer
			command.Stderr = &errors
			require.NoError(t, command.Start())
			reader := bufio.NewReader(output)
			said, _ := reader.ReadString('\n')
			pass()
			rest, _ := io.ReadAll(reader)
			err = command.Wait()
			t.Logf("%s%s%s", said, rest, errors.Bytes()[:min(errors.Len(), 600)]) // the first lines of a panic
			require.NoError(t, err)
			require.Contains(t, string(rest), "messages=1 rejected=0 ")
			require.Contains(t, said, "channel=c state="+test.state+" ")
			require.Contains(t, said, test.says)
			if !test.sane {
				require.Contains(t, said, `group "g"`)
				require.Contains(t, said, "the answer of "+broker+" to ")
			}
		})
	}
}

// TestHealthAsksWhetherAnotherServerIsABroker proves contract 7.8: health names the obvious cause.
func TestHealthAsksWhetherAnotherServerIsABroker(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer string
		tls    *tls.Config
		says   string
	}{
		"a web server":             {webServer, nil, "it speaks HTTP: is this the address of a Kafka broker?"},
		"PostgreSQL":               {"E\x00\x00\x00\x0bSFATAL\x00", nil, "claims to have 1157627904 bytes, of 65536 at most (is this the address of a Kafka broker?)"},
		"a TLS listener":           {"\x15\x03\x03\x00\x02\x02\x46", nil, "expecting TLS: set TLS of kafkaconsumer.Config"},
		"TLS to a web server":      {webServer, &tls.Config{}, "may not use TLS"},
		"TLS to a silent listener": {"", &tls.Config{}, "may not use TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := consumer(t, config([]string{otherServer(t, test.answer)}, topic), newLedger(), func(cfg *kafkaconsumer.Config) {
				cfg.TLS, cfg.DialTimeout = test.tls, 500*time.Millisecond
			})
			require.NoError(t, c.Start(t.Context()))
			eventually(t, test.says, func() bool {
				err := c.Health().Err()
				return err != nil && strings.Contains(err.Error(), test.says)
			})
		})
	}
}

// TestRefusedRefreshIsLoggedWhileConsumingContinues proves contract 7.2: kafka-go itself does not report
// a refused refresh, and continues with the brokers, topics and leaders that it knows.
func TestRefusedRefreshIsLoggedWhileConsumingContinues(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	proxy, err := kafkaproxy.Start(r.kafka.Brokers()[0])
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	c := consumer(t, config([]string{proxy.Address()}, topic), r.ledger)
	require.NoError(t, c.Start(t.Context()))
	r.produce(3, 0)
	r.awaitAll()
	proxy.Forge(int16(kmsg.Metadata), []byte{0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff})
	eventually(t, "it is said", func() bool { return c.Health().ClusterErr != nil })
	require.ErrorContains(t, c.Health().Err(), fmt.Sprintf(
		"group %q: what is known of the cluster cannot be refreshed: the answer of %s to Metadata is refused", group,
		proxy.Address()))
	r.produce(3, 0)
	r.awaitAll()
	proxy.Forge(int16(kmsg.Metadata), nil)
	eventually(t, "it is over", func() bool { return c.Health().Err() == nil })
}
