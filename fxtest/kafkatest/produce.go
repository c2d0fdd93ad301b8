package kafkatest

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// produceTimeout bounds each Produce.
const produceTimeout = 30 * time.Second

// Record is one record to produce. A nil key, value or header value is written as null, which differs from an empty
// one.
type Record struct {
	// Partition is the partition that the record is produced to. The default is 0.
	Partition int
	Key       []byte
	Value     []byte
	Headers   []Header
	// Timestamp has a resolution of milliseconds. The default is the current time.
	Timestamp time.Time
}

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// Produce writes records in order and waits until all are acknowledged, for at most 30 seconds. Each call uses
// connections of its own, so that none stays open and disturbs a test.
func (k *Kafka) Produce(topic string, records ...Record) error {
	producer, err := kgo.NewClient(k.ClientOptions()...)
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	defer producer.Close()
	out := make([]*kgo.Record, len(records))
	for i, r := range records {
		out[i] = &kgo.Record{Topic: topic, Partition: int32(r.Partition), Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}
		for _, h := range r.Headers {
			out[i].Headers = append(out[i].Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), produceTimeout)
	defer cancel()
	if err := producer.ProduceSync(ctx, out...).FirstErr(); err != nil {
		return fmt.Errorf("produce %d records to topic %q: %w", len(records), topic, err)
	}
	return nil
}

// ClientOptions returns the options that a franz-go client needs to reach this Kafka. Records go to the partition that
// they name. Add options for transactions.
func (k *Kafka) ClientOptions() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(k.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(50 * time.Millisecond), kgo.ProducerLinger(0), kgo.UnknownTopicRetries(2),
	}
	if k.options.tls != nil {
		opts = append(opts, kgo.DialTLSConfig(k.options.tls))
	}
	if u := k.options.user; u != nil {
		var mechanism sasl.Mechanism
		switch u.mechanism {
		case "SCRAM-SHA-256":
			mechanism = scram.Auth{User: u.name, Pass: u.password}.AsSha256Mechanism()
		case "SCRAM-SHA-512":
			mechanism = scram.Auth{User: u.name, Pass: u.password}.AsSha512Mechanism()
		default:
			mechanism = plain.Auth{User: u.name, Pass: u.password}.AsMechanism()
		}
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts
}
