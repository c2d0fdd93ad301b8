package kafka

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// Contract 7.2. A member of the group may assign anything.
func TestNonexistentAssignedPartitionsAreNotRead(t *testing.T) {
	r := newRig(t, 1)
	r.assigning(manyPartitions(10_000))
	var asked atomic.Int32
	r.kafka.Observe(kmsg.ListOffsets, func() { asked.Add(1) })
	before := runtime.NumGoroutine()
	c := r.start()
	eventually(t, "health says it", func() bool { return c.Health().AssignmentErr != nil })
	require.ErrorContains(t, c.Health().Err(), "assigned 9999 partitions that do not exist")
	require.Len(t, c.Health().Partitions, 1)
	r.produce(10, 0)
	eventually(t, "the one that exists is read", func() bool { return r.ledger.accepted(topic) == 10 })
	require.Less(t, runtime.NumGoroutine()-before, 100)
	require.Less(t, asked.Load(), int32(50))
}

func TestUnknownAssignedPartitionIsReadOnceItExists(t *testing.T) {
	r := newRig(t, 1)
	r.assigning(manyPartitions(2))
	c := r.start()
	eventually(t, "it is refused", func() bool { return c.Health().AssignmentErr != nil })
	client, err := kgo.NewClient(r.kafka.ClientOptions()...)
	require.NoError(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreatePartitions(t.Context(), 1, topic)
	require.NoError(t, err)
	eventually(t, "both are read", func() bool { return len(c.Health().Partitions) == 2 })
	require.NoError(t, c.Health().AssignmentErr)
}

// counting keeps how many messages one accept had at most.
type counting struct {
	*ledger
	most atomic.Int64
}

func (c *counting) AcceptRecords(
	ctx context.Context, channel string, received []envelope.Received,
) ([]envelope.Result, error) {
	n := 0
	for _, r := range received {
		n += len(r.Messages)
	}
	c.most.Store(max(c.most.Load(), int64(n)))
	return c.ledger.AcceptRecords(ctx, channel, received)
}

// Contract 7.2. A record may hold ten thousand events.
func TestAcceptsAreBoundedInMessages(t *testing.T) {
	r := newRig(t, 1)
	var events strings.Builder
	for i := range 400 {
		fmt.Fprintf(&events, `,{"specversion":"1.0","id":"%d","source":"s","type":"t"}`, i)
	}
	var records []kafkatest.Record
	for range 20 {
		records = append(records, kafkatest.Record{Value: []byte("[" + events.String()[1:] + "]"),
			Headers: []kafkatest.Header{{Key: "content-type", Value: []byte("application/cloudevents-batch+json")}}})
	}
	require.NoError(t, r.kafka.Produce(topic, records...))
	into := &counting{ledger: r.ledger}
	c := consumer(t, config(r.kafka.Brokers(), topic), into, func(c *kafkaconsumer.Config) {
		c.BatchRecords, c.Decoder = 1000, envelope.DecoderConfig{}
	})
	require.NoError(t, c.Start(t.Context()))
	eventually(t, "all are accepted", func() bool { return r.committed(0) == 20 })
	require.LessOrEqual(t, into.most.Load(), int64(1200), "three records of 400 messages")
}

func TestBatchOfTooManyMessagesHaltsItsPartition(t *testing.T) {
	var records []byte
	for i := range 250_001 {
		records = append(records, typedRecord(i, "t", nil)...)
	}
	r := newRig(t, 2)
	content := compressed(t, records)
	t.Logf("%d bytes on the wire", len(content))
	r.serve([]craftedBatch{{base: 0, last: 250_000, raw: rawBatch(0, zstdCodec, 250_001, content)}})
	halted := make(chan error, 5)
	r.start(func(c *kafkaconsumer.Config) { c.OnHalt = func(_ string, _ int, reason error) { halted <- reason } })
	require.ErrorContains(t, receive(t, halted), "more than 250000 messages")
	r.produce(10, 1)
	eventually(t, "the other partition goes on", func() bool { return r.committed(1) == 10 })
}

// Contract 7.2. One batch of small frames took a core for twenty minutes, and no stop ended it.
func TestBatchOfManyFramesBlocksNoPartitionAndNoStop(t *testing.T) {
	r := newRig(t, 2)
	frame := compressed(t, []byte("x"))
	content := []byte(strings.Repeat(string(frame), 943<<10/len(frame)))
	r.serve([]craftedBatch{{base: 0, last: 0, raw: rawBatch(0, zstdCodec, 1, content)}})
	halted := make(chan error, 5)
	c := r.start(func(c *kafkaconsumer.Config) { c.OnHalt = func(_ string, _ int, reason error) { halted <- reason } })
	r.produce(10, 1)
	eventually(t, "the other partition goes on", func() bool { return r.committed(1) == 10 })
	require.ErrorContains(t, receive(t, halted), "more than 1000 frames")
	stop(t, c)
}
