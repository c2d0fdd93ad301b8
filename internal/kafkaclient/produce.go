package kafkaclient

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/handler"
)

// Partitions returns the number of partitions of a topic, at most MetadataTTL old. The request never creates it.
func (c *Client) Partitions(ctx context.Context, topic string) (int, error) {
	response, err := c.Kafka.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return 0, fmt.Errorf("topic %q: ask brokers: %w", topic, err)
	}
	for _, found := range response.Topics {
		switch {
		case found.Name != topic:
		case errors.Is(found.Error, kafka.UnknownTopicOrPartition), found.Error == nil && len(found.Partitions) == 0:
			return 0, fmt.Errorf("topic %q does not exist: create it, it is not made automatically: %w", topic,
				kafka.UnknownTopicOrPartition)
		case found.Error != nil:
			return 0, fmt.Errorf("topic %q: ask brokers: %w", topic, found.Error)
		default:
			return len(found.Partitions), nil
		}
	}
	return 0, fmt.Errorf("topic %q: ask brokers: the answer is not about it: %w", topic, kafka.Unknown)
}

// Produce writes records to a partition in one request. It returns when all replicas have acknowledged them. A lost
// answer is an error although the records may be written.
func (c *Client) Produce(ctx context.Context, topic string, partition int, records ...kafka.Record) error {
	response, err := c.Kafka.Produce(ctx, &kafka.ProduceRequest{
		Topic: topic, Partition: partition, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...),
	})
	if err == nil {
		err = response.Error
	}
	if err == nil && len(response.RecordErrors) > 0 {
		err = fmt.Errorf("%d of %d records: %w", len(response.RecordErrors), len(records), kafka.InvalidRecord)
	}
	if err != nil {
		return fmt.Errorf("topic %q: publish %d records: %w", topic, len(records), err)
	}
	return nil
}

// Names of the headers of a CloudEvent in binary mode: AttributePrefix begins those of attributes.
const (
	AttributePrefix = "ce_"
	ContentType     = "content-type"
)

// ContentHeaders returns a message's own headers, but with its content type and, of an event, with its attributes. A
// JSON event had its attributes in the JSON, and a replay may have other ones than its original.
func ContentHeaders(own []handler.Header, attributes map[string]string, contentType string) []handler.Header {
	isEvent := attributes["specversion"] != ""
	headers := slices.DeleteFunc(slices.Clone(own), func(h handler.Header) bool {
		return strings.EqualFold(h.Key, ContentType) || isEvent && strings.HasPrefix(h.Key, AttributePrefix)
	})
	if contentType != "" {
		headers = append(headers, handler.Header{Key: ContentType, Value: []byte(contentType)})
	}
	if !isEvent {
		return headers
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if name != "datacontenttype" {
			headers = append(headers, handler.Header{Key: AttributePrefix + name, Value: []byte(attributes[name])})
		}
	}
	return headers
}

// Permanent reports whether a broker's refusal of records is permanent. Errors that may pass, such as a
// missing topic or a missing authorization, are not.
func Permanent(err error) bool {
	return IsAny(err, kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidTimestamp,
		kafka.UnsupportedForMessageFormat, kafka.InvalidRecord)
}
