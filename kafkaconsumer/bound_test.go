package kafkaconsumer

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// databaseAway is an acceptor whose database is down.
type databaseAway struct{ noRequests }

func (databaseAway) AcceptRecords(context.Context, string, []envelope.Received) ([]envelope.Result, error) {
	return nil, errors.New("the database is away")
}

func (databaseAway) AcceptGap(context.Context, string, envelope.Gap) (envelope.Disposition, error) {
	return envelope.Halt, nil
}

// TestOnePartitionExceedsTheBufferByFourAccepts proves contract 7.2: the partition that may exceed
// BufferBytes while others use it up does so by its response and four accepts, as the docstring
// says. One accept is being tried, one did not fit into it, one waits in the queue, and the fetcher
// holds one.
func TestOnePartitionExceedsTheBufferByFourAccepts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cfg := Config{BatchBytes: 256 << 10, BufferBytes: 1 << 20}.withDefaults()
	buffer := kafkawire.NewBudget(cfg.BufferBytes)
	other := buffer.NewHold()
	require.True(t, other.Take(ctx, cfg.BufferBytes-1))
	other.Send(cfg.BufferBytes - 1) // to another worker
	w := &worker{
		shared: &shared{cfg: cfg, acceptor: databaseAway{}, clock: clock.System{}, conditions: conditions{
			accepting: condition.New(zap.NewNop(), clock.System{}, zap.WarnLevel, "accept", "nothing is accepted"),
		}},
		in: make(chan *chunk, 1), buffer: buffer,
	}
	var records []envelope.Record
	for i := range 8 {
		records = append(records, envelope.Record{Offset: int64(i), Timestamp: time.UnixMilli(0),
			Value: bytes.Repeat([]byte("x"), cfg.BatchBytes-2000)})
	}
	content := written{layout: layout{base: 0, last: 7}, records: records}.bytes(t)
	f := &fetcher{
		shared:    &shared{network: &network{inflater: kafkawire.NewInflater(cfg.MaxBatchBytes)}, cfg: cfg},
		partition: newPartition(ctx, "t", 3, 0), buffer: buffer,
		decode:    func(r envelope.Record) envelope.Received { return envelope.Received{Record: r} },
		sizeBound: func(envelope.Record) int { return 0 }, out: w.in,
	}
	held := buffer.NewHold()
	require.True(t, held.Take(ctx, len(content))) // as the response is
	d := &responseReader{fetcher: f, held: held, response: &kafkawire.Response{Records: content},
		chunk: &chunk{partition: f.partition}}
	worked, delivered := make(chan struct{}), make(chan error, 1)
	go func() { defer close(worked); w.run(ctx, ctx) }()
	go func() { delivered <- d.run() }()

	accepts := func() float64 {
		return float64(buffer.Bytes()-cfg.BufferBytes-len(content)) / float64(cfg.BatchBytes)
	}
	require.Eventually(t, func() bool {
		return accepts() > 3
	}, testenv.Patience, time.Millisecond, "all four places are taken")
	require.Never(t, func() bool {
		return accepts() > 4+float64(64<<10)/float64(cfg.BatchBytes)
	}, 100*time.Millisecond, time.Millisecond)
	cancel()
	<-worked
	require.ErrorIs(t, <-delivered, context.Canceled)
}

// TestOnlyASingleRecordExceedsBatchRecords proves contract 7.2.
func TestOnlyASingleRecordExceedsBatchRecords(t *testing.T) {
	messages := []int{2, 3, 1, 1, 9, 0, 4}
	var records []envelope.Record
	for i := range messages {
		records = append(records, envelope.Record{Offset: int64(i), Timestamp: time.UnixMilli(0), Value: []byte("x")})
	}
	content := written{layout: layout{base: 0, last: 6}, records: records}.bytes(t)
	out := deliverDecoded(t, content, 0, nil, func(c *Config) { c.BatchRecords = 4 },
		func(r envelope.Record) int { return messages[r.Offset] })
	require.NoError(t, out.err)
	require.Len(t, out.records, len(records))
	require.Equal(t, []int{2, 4, 1, 9, 1, 4}, out.messages)
	require.Equal(t, []int64{1, 3, 4, 5, 6, 7}, out.bounds)
	require.Zero(t, out.left)
}
