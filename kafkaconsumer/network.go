package kafkaconsumer

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// network owns every connection of a consumer.
type network struct {
	*kafkaclient.Client
	cfg      Config
	inflater *kafkawire.Inflater
}

// newNetwork makes no connection yet. cfg must be valid.
func newNetwork(cfg Config, log *zap.Logger, clk clock.Clock) (*network, error) {
	of := cfg.client()
	if cfg.DeadLetterTopic != "" {
		of.Topics = append(slices.Clone(of.Topics), cfg.DeadLetterTopic)
	}
	client, err := kafkaclient.New(of, log, clk)
	if err != nil {
		return nil, err
	}
	cfg.SASL = cfg.SASL.withoutSecrets()
	return &network{Client: client, cfg: cfg, inflater: kafkawire.NewInflater(cfg.MaxBatchBytes)}, nil
}

// dialLeader connects to the leader of a partition as the cached metadata names it.
func (n *network) dialLeader(ctx context.Context, topic string, partition int) (*kafkawire.Conn, error) {
	address, err := n.leader(ctx, topic, partition)
	if err != nil {
		return nil, fmt.Errorf("leader of %s/%d: %w", topic, partition, err)
	}
	conn, err := n.dialBroker(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s, the leader of %s/%d: %w", address, topic, partition, err)
	}
	return conn, nil
}

// dialBroker connects to a broker for our own requests.
func (n *network) dialBroker(ctx context.Context, address string) (*kafkawire.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DialTimeout+n.cfg.RequestTimeout)
	defer cancel()
	conn, err := n.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	return kafkawire.NewConn(ctx, conn, n.cfg.ClientID, n.cfg.RequestTimeout, n.cfg.MaxBatchBytes)
}

// leader returns the leader's address. kafka-go caches it for kafkaclient.MetadataTTL at most.
func (n *network) leader(ctx context.Context, topic string, partition int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	response, err := n.Kafka.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return "", err
	}
	for _, found := range response.Topics {
		switch {
		case found.Name != topic:
			continue
		case found.Error != nil:
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

// kafkaLog writes kafka-go's lines to zap at debug level. Important conditions are also returned as errors, and logged
// once per change.
type kafkaLog struct{ log *zap.Logger }

// Printf implements kafka.Logger.
func (l kafkaLog) Printf(format string, args ...any) {
	if entry := l.log.Check(zap.DebugLevel, "inbox: kafka client"); entry != nil {
		entry.Write(zap.String(telemetry.FieldText, fmt.Sprintf(format, args...)))
	}
}
