package kafka

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// craftedBatch is a record batch as compaction may leave it. Some of the offsets from base to last
// have no record.
type craftedBatch struct {
	base, last int64
	offsets    []int64
	corrupt    bool
	codec      int16
	epoch      int32
	raw        []byte // the encoded batch, if it is not built from the other fields
}

func (b craftedBatch) bytes() []byte {
	if b.raw != nil {
		return b.raw
	}
	batch := kmsg.RecordBatch{
		FirstOffset: b.base, PartitionLeaderEpoch: b.epoch, Magic: 2, Attributes: b.codec,
		LastOffsetDelta: int32(b.last - b.base),
		FirstTimestamp:  1, MaxTimestamp: 1, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,
		NumRecords: int32(len(b.offsets)),
	}
	for _, offset := range b.offsets {
		r := kmsg.Record{OffsetDelta: int32(offset - b.base), Value: fmt.Append(nil, offset)}
		r.Length = int32(len(r.AppendTo(nil)) - 1) // without the length field, which is one byte for these sizes
		batch.Records = r.AppendTo(batch.Records)
	}
	encoded := batch.AppendTo(nil)
	binary.BigEndian.PutUint32(encoded[8:], uint32(len(encoded)-12))
	binary.BigEndian.PutUint32(encoded[17:], crc32.Checksum(encoded[21:], crc32.MakeTable(crc32.Castagnoli)))
	if b.corrupt {
		encoded[len(encoded)-1] ^= 1
	}
	return encoded
}

// serve answers fetches of partition 0 with these batches, one at a time as at the ends of
// segments, and counts the fetches. Calling it again replaces the log.
func (r *rig) serve(batches []craftedBatch) *atomic.Int32 {
	fetches := &atomic.Int32{}
	if r.served.Swap(&batches) != nil {
		return fetches
	}
	r.kafka.Cluster().ControlKey(1, func(request kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.Cluster().KeepControl()
		fetch := request.(*kmsg.FetchRequest)
		if len(fetch.Topics) != 1 || fetch.Topics[0].Partitions[0].Partition != 0 {
			return nil, nil, false
		}
		fetches.Add(1)
		asked := fetch.Topics[0].Partitions[0]
		response := fetch.ResponseKind().(*kmsg.FetchResponse)
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic = fetch.Topics[0].Topic
		partition := kmsg.NewFetchResponseTopicPartition()
		batches := *r.served.Load()
		end := batches[len(batches)-1].last + 1
		partition.HighWatermark, partition.LastStableOffset = end, end
		for _, b := range batches {
			if b.last >= asked.FetchOffset {
				partition.RecordBatches = b.bytes()
				break
			}
		}
		if asked.FetchOffset > end {
			partition.ErrorCode = 1
		}
		topic.Partitions = append(topic.Partitions, partition)
		response.Topics = append(response.Topics, topic)
		return response, nil, true
	})
	return fetches
}

func TestEmptyBatchesArePassedWithoutSkippingARecord(t *testing.T) {
	t.Parallel()
	for name, batches := range map[string][]craftedBatch{
		"empty ones in a row": {{base: 0, last: 9, offsets: []int64{0, 3}}, {base: 10, last: 84},
			{base: 85, last: 424}, {base: 425, last: 430, offsets: []int64{425}}},
		"empty at first":    {{base: 0, last: 99}, {base: 100, last: 100, offsets: []int64{100}}},
		"empty at last":     {{base: 0, last: 4, offsets: []int64{0}}, {base: 5, last: 5}},
		"nothing but empty": {{base: 0, last: 1000}},
		"gaps between batches": {{base: 7, last: 8}, {base: 1000, last: 1010, offsets: []int64{1004}},
			{base: 5000, last: 5000}, {base: 9000, last: 9001, offsets: []int64{9001}}},
		"small ones behind a large": {{base: 0, last: 1 << 20}, {base: 1<<20 + 1, last: 1<<20 + 1,
			offsets: []int64{1<<20 + 1}}, {base: 1<<20 + 2, last: 1<<20 + 2, offsets: []int64{1<<20 + 2}}},
		"last record of batch is it": {{base: 0, last: 3, offsets: []int64{3}}, {base: 4, last: 4, offsets: []int64{4}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.ledger.sparse = true
			fetches := r.serve(batches)
			var want []int64
			for _, b := range batches {
				want = append(want, b.offsets...)
			}
			r.start()
			end := batches[len(batches)-1].last + 1
			eventually(t, "read to its end", func() bool { return r.committed(0) == end })
			require.Less(t, fetches.Load(), int32(400))
			var found []int64
			for _, record := range r.ledger.of(topic, 0) {
				found = append(found, record.Offset)
				require.Equal(t, fmt.Sprint(record.Offset), string(record.Value))
			}
			require.Equal(t, want, found)
		})
	}
}

func TestCorruptBatchHaltsBeforeItself(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.serve([]craftedBatch{{base: 0, last: 1, offsets: []int64{0, 1}},
		{base: 2, last: 3, offsets: []int64{2, 3}, corrupt: true}, {base: 4, last: 4, offsets: []int64{4}}})
	halted := make(chan error, 5)
	r.start(func(c *kafkaconsumer.Config) {
		c.OnHalt = func(_ string, partition int, reason error) {
			require.Zero(t, partition)
			halted <- reason
		}
	})
	require.ErrorIs(t, receive(t, halted), kafkaconsumer.ErrUnreadable)
	eventually(t, "what is before it is committed", func() bool { return r.committed(0) == 2 })
	r.produce(10, 1)
	eventually(t, "the other partition goes on", func() bool { return r.committed(1) == 10 })
	require.Equal(t, int64(2), r.committed(0))
}

func TestFallingLeaderEpochHalts(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.serve([]craftedBatch{{base: 0, last: 0, offsets: []int64{0}, epoch: 5},
		{base: 1, last: 1, offsets: []int64{1}, epoch: 4}})
	halted := make(chan error, 5)
	r.start(func(c *kafkaconsumer.Config) { c.OnHalt = func(_ string, _ int, reason error) { halted <- reason } })
	var epoch *kafkaconsumer.EpochError
	require.ErrorAs(t, receive(t, halted), &epoch)
	eventually(t, "committed up to it", func() bool { return r.committed(0) == 1 })
}
