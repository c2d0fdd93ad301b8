package kafkaconsumer

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

// dialLeader connects to the leader of a partition as the cached metadata names it.
func (n *network) dialLeader(ctx context.Context, topic string, partition int) (*kafkawire.FetchConn, error) {
	address, err := n.leader(ctx, topic, partition)
	if err != nil {
		return nil, fmt.Errorf("leader of %s/%d: %w", topic, partition, err)
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DialTimeout+n.cfg.RequestTimeout)
	defer cancel()
	var conn net.Conn
	ended := func() bool { return true }
	defer func() { ended() }()
	dialer := &kafka.Dialer{
		ClientID: n.cfg.ClientID, Timeout: n.cfg.DialTimeout, SASLMechanism: n.dialer.SASLMechanism,
		DialFunc: func(_ context.Context, network, address string) (_ net.Conn, err error) {
			if conn, err = n.dial(ctx, network, address); err != nil {
				return nil, err
			}
			// kafka-go authenticates without a context, so close the connection when ctx ends.
			ended = context.AfterFunc(ctx, func() { kafkawire.HangUp(conn) })
			return kafkawire.NewCheckedConn(conn, n.guard, address), nil
		},
	}
	_, err = dialer.DialContext(ctx, "tcp", address)
	var c *kafkawire.FetchConn
	if err == nil {
		c, err = kafkawire.NewFetchConn(ctx, conn, n.cfg.ClientID, n.cfg.RequestTimeout, n.cfg.MaxBatchBytes)
	} else if conn != nil {
		kafkawire.HangUp(conn)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s, the leader of %s/%d: %w", address, topic, partition, err)
	}
	return c, nil
}

// leader returns the leader's address. kafka-go caches it for metadataTTL at most.
func (n *network) leader(ctx context.Context, topic string, partition int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	response, err := n.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return "", err
	}
	for _, found := range response.Topics {
		if found.Name != topic {
			continue
		}
		if found.Error != nil {
			return "", found.Error
		}
		for _, p := range found.Partitions {
			switch {
			case p.ID != partition:
			case p.Leader.Host != "":
				return net.JoinHostPort(p.Leader.Host, strconv.Itoa(p.Leader.Port)), nil
			case p.Error != nil:
				return "", p.Error
			default:
				return "", kafka.LeaderNotAvailable
			}
		}
	}
	return "", kafka.UnknownTopicOrPartition
}
