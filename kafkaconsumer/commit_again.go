package kafkaconsumer

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
)

// commitAgain commits on a fresh connection.
func (s *session) commitAgain(offsets map[string]map[int]int64) error {
	s.consumer.network.transport.CloseIdleConnections() // idle ones may be as old as the lost one
	return s.commit(offsets)
}

// commit commits for the session's generation on another connection than the generation's own.
// Brokers refuse it too once the generation is over.
func (s *session) commit(offsets map[string]map[int]int64) error {
	c := s.consumer
	ctx, cancel := context.WithTimeout(c.hardCtx, c.cfg.RequestTimeout)
	defer cancel()
	asked, answered := 0, 0
	request := &offsetcommit.Request{GroupID: c.cfg.GroupID, GenerationID: s.gen.ID, MemberID: s.gen.MemberID,
		RetentionTimeMs: -1}
	for topic, partitions := range offsets {
		of := offsetcommit.RequestTopic{Name: topic}
		for id, offset := range partitions {
			of.Partitions = append(of.Partitions, offsetcommit.RequestPartition{
				PartitionIndex: int32(id), CommittedOffset: offset, CommittedLeaderEpoch: -1,
			})
		}
		request.Topics = append(request.Topics, of)
		asked += len(partitions)
	}
	answer, err := c.network.transport.RoundTrip(ctx, c.network.client.Addr, request)
	if err != nil {
		return err
	}
	response, ok := answer.(*offsetcommit.Response)
	if !ok {
		return fmt.Errorf("the answer is %T: %w", answer, kafka.Unknown)
	}
	for _, topic := range response.Topics {
		answered += len(topic.Partitions)
		for _, p := range topic.Partitions {
			if p.ErrorCode != 0 {
				return fmt.Errorf("%s/%d: %w", topic.Name, p.PartitionIndex, kafka.Error(p.ErrorCode))
			}
		}
	}
	if answered != asked {
		return fmt.Errorf("the answer is about %d of %d partitions: %w", answered, asked, kafka.Unknown)
	}
	return nil
}
