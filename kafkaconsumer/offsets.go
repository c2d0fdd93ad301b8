package kafkaconsumer

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
)

// begin finds the offset to start at, trying until it is known.
func (f *fetcher) begin(committed int64) (int64, bool) {
	p := f.partition
	if committed >= 0 {
		p.begin(committed, false)
		return committed, true
	}
	retry := backoff{first: fetchBackoffFirst, most: fetchBackoffMost}
	for {
		offset, fresh, err := f.startOffset()
		if err == nil {
			// The end of the log moves on: unless it is committed now, records
			// that come before the first commit would be lost by a restart.
			p.begin(offset, fresh && f.cfg.StartOffset == Last)
			f.works()
			return offset, true
		}
		if p.ctx.Err() != nil {
			return 0, false
		}
		f.failed(err)
		if !retry.wait(p.ctx) {
			return 0, false
		}
	}
}

// startOffset finds where to start a partition that kafka-go knows no committed
// offset of. It asks again before believing it: kafka-go takes an answer that
// leaves the partition out for "none", and starting at Last then would skip
// what was never read.
func (f *fetcher) startOffset() (offset int64, fresh bool, err error) {
	if offset, err = f.committedOffset(); err != nil || offset >= 0 {
		return offset, false, err
	}
	at := int64(kafka.FirstOffset)
	if f.cfg.StartOffset == Last {
		at = kafka.LastOffset
	}
	offset, err = f.listOffset(at)
	return offset, true, err
}

// committedOffset asks the coordinator for the group's offset; -1 is none.
func (f *fetcher) committedOffset() (int64, error) {
	p := f.partition
	ctx, cancel := context.WithTimeout(p.ctx, f.cfg.RequestTimeout)
	defer cancel()
	response, err := f.network.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: f.cfg.GroupID, Topics: map[string][]int{p.topic: {p.id}}})
	if err == nil {
		err = response.Error
	}
	if err != nil {
		return 0, fmt.Errorf("committed offset of %s/%d: %w", p.topic, p.id, err)
	}
	for _, found := range response.Topics[p.topic] {
		if found.Partition == p.id {
			if found.Error != nil {
				return 0, fmt.Errorf("committed offset of %s/%d: %w", p.topic, p.id, found.Error)
			}
			return found.CommittedOffset, nil
		}
	}
	return 0, fmt.Errorf("committed offset of %s/%d: the answer is not about it: %w", p.topic, p.id, kafka.Unknown)
}

// gap describes why an offset is out of range. A broker that has just become
// the leader, or still takes itself for it, may say so of an offset that is
// not: then asking again helps.
func (f *fetcher) gap(offset int64) error {
	gap := &OffsetGapError{Topic: f.partition.topic, Partition: f.partition.id, Offset: offset}
	var err error
	if gap.First, err = f.listOffset(kafka.FirstOffset); err != nil {
		return err
	}
	if gap.Last, err = f.listOffset(kafka.LastOffset); err != nil {
		return err
	}
	if gap.First <= offset && offset <= gap.Last {
		return fmt.Errorf("fetch %s/%d from offset %d: %w, although the log holds %d to %d",
			f.partition.topic, f.partition.id, offset, kafka.OffsetOutOfRange, gap.First, gap.Last-1)
	}
	return gap
}

// epochFell describes a batch whose leader came before the last one's.
func (f *fetcher) epochFell(b batch) error {
	first, err := f.listOffset(kafka.FirstOffset)
	if err != nil {
		return err
	}
	return &EpochError{From: f.epoch, To: b.epoch, Offset: b.base, First: first}
}

// listOffset asks for the first or last offset.
func (f *fetcher) listOffset(at int64) (int64, error) {
	p := f.partition
	ctx, cancel := context.WithTimeout(p.ctx, f.cfg.RequestTimeout)
	defer cancel()
	answer, err := f.network.transport.RoundTrip(ctx, f.network.client.Addr, &listoffsets.Request{
		ReplicaID: -1,
		Topics: []listoffsets.RequestTopic{{Topic: p.topic, Partitions: []listoffsets.RequestPartition{{
			Partition: int32(p.id), CurrentLeaderEpoch: -1, Timestamp: at,
		}}}},
	})
	if err != nil {
		return 0, fmt.Errorf("list offsets of %s/%d: %w", p.topic, p.id, err)
	}
	response, ok := answer.(*listoffsets.Response)
	if !ok || len(response.Topics) != 1 || len(response.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("list offsets of %s/%d: the answer %T is not about it: %w", p.topic, p.id, answer, kafka.Unknown)
	}
	found := response.Topics[0].Partitions[0]
	if found.ErrorCode != 0 {
		return 0, fmt.Errorf("list offsets of %s/%d: %w", p.topic, p.id, kafka.Error(found.ErrorCode))
	}
	if found.Offset < 0 {
		return 0, fmt.Errorf("list offsets of %s/%d: the answer is offset %d: %w", p.topic, p.id, found.Offset, kafka.Unknown)
	}
	return found.Offset, nil
}
