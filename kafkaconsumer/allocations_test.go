package kafkaconsumer

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

// TestAllocationsPerRecordStayFew limits what it costs to make messages of a response: its headers, a
// copy of its bytes, the ID, the message and its coordinates.
func TestAllocationsPerRecordStayFew(t *testing.T) {
	const records = 500
	var all []envelope.Record
	for i := range records {
		id := fmt.Appendf(nil, "%036d", i)
		all = append(all, envelope.Record{Offset: int64(i), Timestamp: time.UnixMilli(0), Key: id, Value: make([]byte, 1024),
			Headers: []handler.Header{{Key: "MessageId", Value: id}, {Key: "MessageType", Value: []byte("t")}}})
	}
	content := written{layout: layout{last: records - 1}, records: all}.bytes(t)
	decoder, err := envelope.NewDecoder(envelope.DecoderConfig{}, nil)
	require.NoError(t, err)
	cfg, buffer, out := Config{}.withDefaults(), kafkawire.NewBudget(64<<20), make(chan *chunk, 1)
	f := &fetcher{
		shared:    &shared{network: &network{inflater: kafkawire.NewInflater(cfg.MaxBatchBytes)}, cfg: cfg},
		partition: newPartition(t.Context(), "t", 3, 0), buffer: buffer,
		decode:    func(r envelope.Record) envelope.Received { return decoder.Decode("c", r) },
		sizeBound: decoder.SizeBound, out: out,
	}
	count := testing.AllocsPerRun(10, func() {
		held := buffer.NewHold()
		d := &responseReader{fetcher: f, held: held, response: &kafkawire.Response{Records: content}, chunk: f.newChunk()}
		require.NoError(t, d.run())
		held.End()
		c := <-out
		require.Len(t, c.received, records)
		buffer.Release(c.bytes)
	})
	t.Logf("%.2f allocations per record", count/records)
	require.Less(t, count/records, 6.5)
}
