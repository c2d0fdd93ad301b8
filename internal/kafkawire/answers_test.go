package kafkawire

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/consumer"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/segmentio/kafka-go/protocol/joingroup"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/protocol/syncgroup"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// source is a connection that reads from Reader.
type source struct {
	net.Conn
	io.Reader
}

func (s source) Read(p []byte) (int, error) { return s.Reader.Read(p) }

// checked returns a connection on which wire arrives as the answer to a request.
func checked(t testing.TB, r request, wire []byte) *checkedConn {
	t.Helper()
	guard := NewGuard(testenv.Patience, nil, func(protocol.ApiKey) {}, func(*AnswerError) {})
	return &checkedConn{Conn: source{Reader: bytes.NewReader(wire)}, guard: guard, address: "b:1", asked: []request{r}}
}

// versions returns the versions of an API that kafka-go knows.
func versions(key protocol.ApiKey) (all []int16) {
	for v := key.MinVersion(); v <= key.MaxVersion(); v++ {
		all = append(all, v)
	}
	return all
}

// filled returns a message with two elements in each of its lists.
func filled(t *testing.T, key protocol.ApiKey) protocol.Message {
	t.Helper()
	subscription, err := protocol.Marshal(1, consumer.Subscription{
		Version: 1, Topics: []string{"a", "b"}, UserData: []byte("u"),
		OwnedPartitions: []consumer.TopicPartition{{Topic: "a", Partitions: []int32{0}}},
	})
	require.NoError(t, err)
	assignment := assigned("a", 0, 1)
	var fill func(v reflect.Value, name string)
	fill = func(v reflect.Value, name string) {
		switch kind := v.Kind(); {
		case isBytes(v.Type()) && name == "Assignments", isBytes(v.Type()) && name == "MemberAssignment":
			v.SetBytes(assignment)
		case isBytes(v.Type()):
			v.SetBytes(subscription)
		case kind == reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			fill(v.Index(0), "")
			fill(v.Index(1), "")
		case kind == reflect.Struct:
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					fill(v.Field(i), f.Name)
				}
			}
		case kind == reflect.String:
			v.SetString("text")
		case kind == reflect.Bool:
			v.SetBool(true)
		default:
			v.SetInt(7)
		}
	}
	message := reflect.New(answerKinds[key].decoded)
	fill(message.Elem(), "")
	return message.Interface().(protocol.Message)
}

// encoded returns an answer as kafka-go writes it.
func encoded(t testing.TB, version int16, id int32, message protocol.Message) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, protocol.WriteResponse(&out, version, id, message))
	return out.Bytes()
}

// resized cuts an answer to n bytes after its length, and sets the length to n.
func resized(wire []byte, n int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(n)), wire[4:4+n]...)
}

func TestResponsesPassUnchangedAndTruncatedOnesAreRefused(t *testing.T) {
	for key := range answerKinds {
		for _, version := range versions(key) {
			r := request{key: key, version: version, id: 5}
			wire := encoded(t, version, 5, filled(t, key))
			passed, err := io.ReadAll(checked(t, r, wire))
			require.NoError(t, err, "%s version %d", key, version)
			require.Equal(t, wire, passed)
			for n := range len(wire) - 4 {
				passed, err := io.ReadAll(checked(t, r, resized(wire, n)))
				var refused *AnswerError
				require.ErrorAs(t, err, &refused, "%s version %d, %d of %d bytes", key, version, n, len(wire)-4)
				require.Empty(t, passed)
			}
			_, err = io.ReadAll(checked(t, r, wire[:len(wire)-1]))
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "the broker closed the connection")
			_, err = io.ReadAll(checked(t, request{key: key, version: version, id: 6}, wire))
			require.ErrorContains(t, err, "it is to request 5, not to 6")
		}
	}
}

func TestMetadataOfLargeClustersPass(t *testing.T) {
	const topics, partitions, brokers = 10_000, 10, 300
	cluster := &metadata.Response{}
	for id := range int32(brokers) {
		host := fmt.Sprintf("broker-%d.kafka.internal", id)
		cluster.Brokers = append(cluster.Brokers, metadata.ResponseBroker{NodeID: id, Host: host, Port: 9092, Rack: "zone-a"})
	}
	for i := range topics {
		topic := metadata.ResponseTopic{Name: fmt.Sprintf("team.domain.events-%05d", i)}
		for id := range int32(partitions) {
			nodes := []int32{1, 2, 3}
			topic.Partitions = append(topic.Partitions, metadata.ResponsePartition{PartitionIndex: id, ReplicaNodes: nodes,
				IsrNodes: nodes})
		}
		cluster.Topics = append(cluster.Topics, topic)
	}
	for _, version := range versions(protocol.Metadata) {
		wire := encoded(t, version, 1, cluster)
		passed, err := io.ReadAll(checked(t, request{key: protocol.Metadata, version: version, id: 1}, wire))
		require.NoError(t, err)
		require.True(t, bytes.Equal(wire, passed))
		t.Logf("version %d: %d bytes", version, len(wire))
	}
}

// assigned returns an assignment of partitions of one topic. Several can be joined.
func assigned(topic string, partitions ...int32) []byte {
	of := []consumer.TopicPartition{{Topic: topic, Partitions: partitions}}
	content, err := protocol.Marshal(1, consumer.Assignment{Version: 1, AssignedPartitions: of})
	if err != nil {
		panic(err)
	}
	return content
}

// joinedAssignments returns one assignment of what both assign: a version, a count, the topics and
// no bytes of the leader's own.
func joinedAssignments(a, b []byte) []byte {
	return slices.Concat(a[:2], []byte{0, 0, 0, 2}, a[6:len(a)-4], b[6:])
}

func counted(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids
}

// TestResponsesBeyondTheirBoundsAreRefusedByName proves contract 7.2.
func TestResponsesBeyondTheirBoundsAreRefusedByName(t *testing.T) {
	id, huge := []byte{0, 0, 0, 1}, []byte{0x7f, 0xff, 0xff, 0xff}
	framed := func(content ...[]byte) []byte {
		all := bytes.Join(append([][]byte{id}, content...), nil)
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(all))), all...)
	}
	synced := func(assignment []byte) []byte { return encoded(t, 0, 1, &syncgroup.Response{Assignments: assignment}) }
	listed := func(n int) []byte {
		return encoded(t, 6, 1, &metadata.Response{Topics: make([]metadata.ResponseTopic, n)})
	}
	subscribed, err := protocol.Marshal(0, consumer.Subscription{Topics: make([]string, maxListed/otherListed)})
	require.NoError(t, err)
	members := []joingroup.ResponseMember{{Metadata: subscribed}}
	most := assigned("t", counted(maxAssigned)...)
	for name, test := range map[string]struct {
		key     protocol.ApiKey
		version int16
		wire    []byte
		says    string // empty if it is not refused
	}{
		"no assignment":             {protocol.SyncGroup, 0, synced(nil), ""},
		"as many partitions as may": {protocol.SyncGroup, 0, synced(most), ""},
		"one partition more": {protocol.SyncGroup, 0, synced(assigned("t", counted(maxAssigned+1)...)),
			"assigned 10001 partitions, of 10000"},
		"more in topics together": {protocol.SyncGroup, 0, synced(joinedAssignments(most, assigned("u", 0))),
			"assigned 10001 partitions"},
		"partitions of two topics": {protocol.SyncGroup, 0, synced(joinedAssignments(assigned("t", 3), assigned("u", 3))),
			""},
		"a partition twice": {protocol.SyncGroup, 0, synced(assigned("t", 3, 3)), `partition 3 of topic "t" twice`},
		"a partition twice in topics": {protocol.SyncGroup, 0, synced(joinedAssignments(assigned("t", 3), assigned("t", 3))),
			"twice"},
		"six bytes of assignment": {protocol.SyncGroup, 0, synced(append([]byte{0, 1}, huge...)),
			"what a member of the group sent"},
		"12 bytes of metadata":     {protocol.Metadata, 6, framed(make([]byte, 4), huge), "do not fit its 12 bytes"},
		"API versions without end": {protocol.ApiVersions, 0, framed(make([]byte, 2), huge), "do not fit"},
		"less than no API versions": {protocol.ApiVersions, 0, framed(make([]byte, 2), []byte{0xff, 0xff, 0xff, 0xf0}),
			"do not fit"},
		"a null list of API versions": {protocol.ApiVersions, 0, framed(make([]byte, 2), []byte{0xff, 0xff, 0xff, 0xff}),
			"its list is null"},
		"as many topics as may": {protocol.Metadata, 6, listed(maxListed / otherListed), ""},
		"one topic more":        {protocol.Metadata, 6, listed(maxListed/otherListed + 1), "it lists more than"},
		"a member's topics": {protocol.JoinGroup, 2, encoded(t, 2, 1, &joingroup.Response{Members: members}),
			"it lists more than"},
		"a large frame": {protocol.Metadata, 6, []byte{1, 0, 0, 1},
			"it claims to have 16777217 bytes, of 16777216 at most"},
		"a large small frame":       {protocol.Heartbeat, 0, []byte{0, 1, 0, 1}, "of 65536 at most"},
		"a frame of less than none": {protocol.Metadata, 6, []byte{0xff, 0xff, 0xff, 0xff}, "it claims to have -1 bytes"},
		"a web server": {protocol.ApiVersions, 0, []byte("HTTP/1.1 400 Bad Request\r\n"),
			"(it speaks HTTP: is this the address of a Kafka broker?)"},
		"a PostgreSQL": {protocol.ApiVersions, 0, []byte("E\x00\x00\x00\x0bSFATAL\x00"),
			"it claims to have 1157627904 bytes, of 65536 at most (is this the address of a Kafka broker?)"},
		"a TLS listener": {protocol.ApiVersions, 0, []byte{21, 3, 3, 0, 2, 2, 70},
			"the broker appears to be expecting TLS: set TLS of kafkaconsumer.Config"},
		"an unknown version":      {protocol.Metadata, 9, framed(), "answers of version 9 are not known"},
		"an API without requests": {protocol.CreateTopics, 0, framed(make([]byte, 100)), "it answers no known request"},
	} {
		t.Run(name, func(t *testing.T) {
			passed, err := io.ReadAll(checked(t, request{key: test.key, version: test.version, id: 1}, test.wire))
			if test.says == "" {
				require.NoError(t, err)
				require.True(t, bytes.Equal(test.wire, passed))
				return
			}
			require.Empty(t, passed)
			require.ErrorContains(t, err, test.says)
			require.ErrorContains(t, err, "b:1")
		})
	}
	unasked := checked(t, request{}, framed())
	unasked.asked = nil
	_, err = io.ReadAll(unasked)
	require.ErrorContains(t, err, "it answers no known request")
}

// TestLargeResponsesAreReadAFewAtATime proves contract 7.2: each partition may send a request at the
// same time, and an answer takes several times its size while it is decoded.
func TestLargeResponsesAreReadAFewAtATime(t *testing.T) {
	wire := encoded(t, 6, 1, &metadata.Response{Topics: make([]metadata.ResponseTopic, smallAnswer/9+1)})
	guard := checked(t, request{}, nil).guard
	var conns []*checkedConn
	for range largeAtOnce + 1 {
		conns = append(conns, &checkedConn{
			Conn: closing{source{Reader: bytes.NewReader(wire)}}, guard: guard,
			asked: []request{{key: protocol.Metadata, version: 6, id: 1}},
		})
	}
	for _, c := range conns[:largeAtOnce] {
		_, err := c.Read(make([]byte, 1))
		require.NoError(t, err)
	}
	require.Len(t, guard.large, largeAtOnce)
	read := make(chan error, 1)
	go func() {
		passed, err := io.ReadAll(conns[largeAtOnce])
		if err == nil && !bytes.Equal(wire, passed) {
			err = fmt.Errorf("%d bytes instead of %d", len(passed), len(wire))
		}
		read <- err
	}()
	require.NoError(t, conns[0].Close(), "who has given up makes room")
	require.NoError(t, <-read)
	_, err := io.ReadAll(conns[1])
	require.NoError(t, err)
	require.Empty(t, guard.large, "who has read all does too")
}

func TestLargeResponseWaitsForOthersNoLongerThanAllowed(t *testing.T) {
	wire := encoded(t, 6, 1, &metadata.Response{Topics: make([]metadata.ResponseTopic, smallAnswer/9+1)})
	read := func(patience time.Duration, cutting <-chan struct{}) error {
		c := checked(t, request{key: protocol.Metadata, version: 6, id: 1}, wire)
		c.guard = NewGuard(patience, cutting, c.guard.passed, c.guard.refused)
		for range largeAtOnce {
			c.guard.large <- struct{}{}
		}
		_, err := io.ReadAll(c)
		return err
	}
	require.ErrorIs(t, read(time.Millisecond, nil), os.ErrDeadlineExceeded)
	cut := make(chan struct{})
	close(cut)
	require.ErrorIs(t, read(testenv.Patience, cut), net.ErrClosed)
}

// closing is a connection that can be closed.
type closing struct{ source }

func (closing) Close() error { return nil }

// brokerOf returns a dialer of in-memory connections that answer requests by their API keys.
func brokerOf(answer func(key protocol.ApiKey, header []byte) []byte) func() net.Conn {
	return func() net.Conn {
		client, broker := net.Pipe()
		go func() {
			defer broker.Close()
			for {
				prefix := make([]byte, 4)
				if _, err := io.ReadFull(broker, prefix); err != nil {
					return
				}
				content := make([]byte, binary.BigEndian.Uint32(prefix))
				if _, err := io.ReadFull(broker, content); err != nil {
					return
				}
				wire := answer(protocol.ApiKey(binary.BigEndian.Uint16(content)), content)
				if wire == nil {
					return
				}
				if _, err := broker.Write(wire); err != nil {
					return
				}
			}
		}()
		return untimed{client}
	}
}

// untimed is a connection that clears its deadlines when it is closed. Those of a pipe last: with a
// hundred thousand connections the runtime's table of timers takes megabytes, which a fuzzer would
// attribute to an answer.
type untimed struct{ net.Conn }

func (c untimed) Close() error {
	_ = c.SetDeadline(time.Time{})
	return c.Conn.Close()
}

// TestTokensWithoutRequestsPassInBounds proves that SASL tokens without a request around them pass,
// as brokers before Kafka 1.0 expect them.
func TestTokensWithoutRequestsPassInBounds(t *testing.T) {
	for _, wire := range [][]byte{{0, 0, 0, 0}, {0x7f, 0xff, 0xff, 0xff}, {0xff, 0xff, 0xff, 0xff}} {
		c := checked(t, request{}, nil)
		c.asked = nil
		dial := brokerOf(func(key protocol.ApiKey, header []byte) []byte {
			id := int32(binary.BigEndian.Uint32(header[4:]))
			switch key {
			case protocol.ApiVersions:
				handshake := apiversions.ApiKeyResponse{ApiKey: int16(protocol.SaslHandshake)}
				return encoded(t, 0, id, &apiversions.Response{ApiKeys: []apiversions.ApiKeyResponse{handshake}})
			case protocol.SaslHandshake:
				return encoded(t, 0, id, &saslhandshake.Response{Mechanisms: []string{"PLAIN"}})
			}
			if string(header) == "\x00user\x00password" {
				return wire
			}
			return nil // ends the connection
		})
		c.Conn = dial()
		dialer := &kafka.Dialer{
			SASLMechanism: plain.Mechanism{Username: "user", Password: "password"},
			DialFunc:      func(context.Context, string, string) (net.Conn, error) { return c, nil },
		}
		conn, err := dialer.DialContext(t.Context(), "tcp", "b:1")
		if wire[0] != 0 {
			require.ErrorContains(t, err, "the answer of b:1 to SaslAuthenticate is refused")
			continue
		}
		require.NoError(t, err)
		_, err = conn.ApiVersions()
		require.NoError(t, err, "what follows are requests again")
		require.NoError(t, conn.Close())
	}
}

// FuzzResponses checks that whatever bytes arrive, kafka-go takes little memory for them and does not
// panic.
func FuzzResponses(f *testing.F) {
	huge := []byte{0x7f, 0xff, 0xff, 0xff}
	for key := range answerKinds {
		f.Add(int16(key), int16(0), append(make([]byte, 4), huge...))
		f.Add(int16(key), int16(6), append(make([]byte, 2), huge...))
		f.Add(int16(key), int16(5), bytes.Repeat([]byte{0xff}, 40))
		f.Add(int16(key), int16(4), make([]byte, 100))
	}
	f.Fuzz(func(t *testing.T, key, version int16, content []byte) {
		if _, known := answerKinds[protocol.ApiKey(key)]; !known || len(content) > 4096 {
			return
		}
		wire := append(binary.BigEndian.AppendUint32(nil, uint32(4+len(content))), 0, 0, 0, 1)
		c := checked(t, request{key: protocol.ApiKey(key), version: version, id: 1}, append(wire, content...))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		passed, err := io.ReadAll(c)
		if err == nil {
			_, _, err = protocol.ReadResponse(bytes.NewReader(passed), protocol.ApiKey(key), version)
			require.NoError(t, err, "what passes can be decoded")
		}
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2<<20))
	})
}

// FuzzGroupResponses checks the same for what kafka-go requests and decodes as the leader of a group.
func FuzzGroupResponses(f *testing.F) {
	sane := map[protocol.ApiKey][]byte{}
	subscribed, err := protocol.Marshal(0, consumer.Subscription{Topics: []string{"t"}})
	require.NoError(f, err)
	for _, answer := range []struct {
		version int16
		message protocol.Message
	}{
		{0, &apiversions.Response{ApiKeys: []apiversions.ApiKeyResponse{
			{ApiKey: int16(protocol.JoinGroup), MaxVersion: 2}, {ApiKey: int16(protocol.Metadata), MaxVersion: 6},
		}}},
		{0, &findcoordinator.Response{NodeID: 1, Host: "b", Port: 1}},
		{2, &joingroup.Response{
			GenerationID: 1, ProtocolName: "range", LeaderID: "m", MemberID: "m",
			Members: []joingroup.ResponseMember{{MemberID: "m", Metadata: subscribed}},
		}},
		{6, &metadata.Response{
			Brokers: []metadata.ResponseBroker{{NodeID: 1, Host: "b", Port: 1}},
			Topics:  []metadata.ResponseTopic{{Name: "t", Partitions: []metadata.ResponsePartition{{LeaderID: 1}}}},
		}},
		{0, &syncgroup.Response{Assignments: assigned("t", 0)}},
	} {
		sane[answer.message.ApiKey()] = encoded(f, answer.version, 0, answer.message)[8:]
	}
	sane[protocol.OffsetFetch] = []byte{0, 0, 0, 1, 0, 1, 't', 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0}
	sane[protocol.Heartbeat], sane[protocol.LeaveGroup] = []byte{0, 0}, []byte{0, 0}
	for key, content := range sane {
		f.Add(int16(key), content)
		f.Add(int16(key), append(bytes.Clone(content[:len(content)/2]), 0x7f, 0xff, 0xff, 0xff))
	}
	f.Add(int16(protocol.SyncGroup), []byte{0, 0, 0, 0, 0, 6, 0, 1, 0x7f, 0xff, 0xff, 0xff})
	f.Add(int16(protocol.SyncGroup), []byte{0, 0, 0, 0, 0, 0})
	f.Add(int16(protocol.ApiVersions), []byte{0, 0, 0xff, 0xff, 0xff, 0xf0})
	null := []byte{0xff, 0xff, 0xff, 0xff}
	f.Add(int16(protocol.ApiVersions), append([]byte{0, 0}, null...))
	f.Add(int16(protocol.SyncGroup), append([]byte{0, 0, 0, 0, 0, 10, 0, 1}, append(null, null...)...))
	f.Add(int16(protocol.OffsetFetch), null)
	f.Add(int16(protocol.Metadata), bytes.Repeat(null, 6))
	f.Fuzz(func(t *testing.T, hostile int16, content []byte) {
		if len(content) > 4096 {
			return
		}
		guard := checked(t, request{}, nil).guard
		dial := brokerOf(func(key protocol.ApiKey, header []byte) []byte {
			answer := sane[key]
			if int16(key) == hostile {
				answer = content
			}
			wire := binary.BigEndian.AppendUint32(nil, uint32(4+len(answer)))
			return append(append(wire, header[4:8]...), answer...)
		})
		group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
			ID: "g", Brokers: []string{"b:1"}, Topics: []string{"t"},
			GroupBalancers: []kafka.GroupBalancer{kafka.RangeGroupBalancer{}},
			Timeout:        time.Minute, JoinGroupBackoff: time.Hour,
			Dialer: &kafka.Dialer{DialFunc: func(_ context.Context, _, address string) (net.Conn, error) {
				return &checkedConn{Conn: dial(), guard: guard, address: address}, nil
			}},
		})
		require.NoError(t, err)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		generation, err := group.Next(t.Context())
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
		if bytes.Equal(content, sane[protocol.ApiKey(hostile)]) {
			require.NoError(t, err)
			require.Equal(t, []kafka.PartitionAssignment{{ID: 0, Offset: 7}}, generation.Assignments["t"])
		}
		require.NoError(t, group.Close())
	})
}
