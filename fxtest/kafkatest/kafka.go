// Package kafkatest is an in-process Kafka for tests and demonstrations. It is a fake broker that implements enough of
// the protocol for producers, consumer groups and transactions, starts in milliseconds and can be told to fail.
//
// It does not reproduce log compaction, quotas, replication or the timing of a real broker. Test what depends on them
// against Apache Kafka.
package kafkatest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Option configures a Kafka.
type Option func(*options)

type options struct {
	kfake []kfake.Opt
	tls   *tls.Config
	user  *user
}

type user struct{ mechanism, name, password string }

// Port makes the broker listen on this port of 127.0.0.1 instead of a free one. Do not use it in tests that may run in
// parallel with others.
func Port(port int) Option {
	return func(o *options) { o.kfake = append(o.kfake, kfake.Ports(port)) }
}

// Topic creates a topic at start.
func Topic(name string, partitions int) Option {
	return func(o *options) { o.kfake = append(o.kfake, kfake.SeedTopics(int32(partitions), name)) }
}

// AutoCreateTopics lets clients create topics by requesting them, as brokers do by default. It is off by default here,
// so that tests declare the topics that they depend on.
func AutoCreateTopics() Option {
	return func(o *options) { o.kfake = append(o.kfake, kfake.AllowAutoTopicCreation()) }
}

// SASL makes clients authenticate as this user. The mechanism is "PLAIN", "SCRAM-SHA-256" or "SCRAM-SHA-512".
func SASL(mechanism, name, password string) Option {
	return func(o *options) {
		o.user = &user{mechanism, name, password}
		o.kfake = append(o.kfake, kfake.EnableSASL(), kfake.Superuser(mechanism, name, password))
	}
}

// TLS makes the broker use TLS with the certificates of server. Produce trusts what client trusts.
func TLS(server, client *tls.Config) Option {
	return func(o *options) {
		o.tls = client
		o.kfake = append(o.kfake, kfake.TLS(server))
	}
}

// Kafka is a cluster of one broker. Its methods are safe for concurrent use.
type Kafka struct {
	cluster  *kfake.Cluster
	network  *network
	sessions *sessions
	options  options
	closing  sync.Once
}

// New starts a Kafka. Close it after use.
func New(opts ...Option) (*Kafka, error) {
	k := &Kafka{network: newNetwork()}
	for _, o := range opts {
		o(&k.options)
	}
	cluster, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1), kfake.ListenFn(k.network.listen), kfake.DefaultNumPartitions(1), kfake.GroupMinSessionTimeout(1),
	}, k.options.kfake...)...)
	if err != nil {
		return nil, fmt.Errorf("start in-process Kafka: %w", err)
	}
	k.cluster = cluster
	k.sessions = watchSessions(k)
	return k, nil
}

// Start is like New, for tests: it fails the test on errors and closes the Kafka when the test ends.
func Start(t testing.TB, opts ...Option) *Kafka {
	t.Helper()
	k, err := New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// Brokers returns the addresses for clients (host:port). They stay the same across Stop and Restart.
func (k *Kafka) Brokers() []string { return k.cluster.ListenAddrs() }

// Cluster returns the fake cluster itself, for what this package does not wrap.
func (k *Kafka) Cluster() *kfake.Cluster { return k.cluster }

// CreateTopic creates a topic. It returns an error if the topic exists.
func (k *Kafka) CreateTopic(name string, partitions int) error {
	if err := k.cluster.CreateTopic(name, int32(partitions), nil); err != nil {
		return fmt.Errorf("create topic %q: %w", name, err)
	}
	return nil
}

// DeleteTopic deletes a topic, its records and the offsets committed for it.
func (k *Kafka) DeleteTopic(name string) error {
	if err := k.cluster.DeleteTopic(name); err != nil {
		return fmt.Errorf("delete topic %q: %w", name, err)
	}
	return nil
}

// DeleteRecords removes a partition's records below offset, as retention does.
func (k *Kafka) DeleteRecords(topic string, partition int, offset int64) error {
	if err := k.cluster.DeleteRecords(topic, int32(partition), offset); err != nil {
		return fmt.Errorf("delete records of %s/%d below %d: %w", topic, partition, offset, err)
	}
	return nil
}

// HasTopic reports whether a topic exists.
func (k *Kafka) HasTopic(name string) bool { return k.cluster.TopicInfo(name) != nil }

// Committed returns the group's committed offset of each partition that has one.
func (k *Kafka) Committed(group, topic string) map[int]int64 {
	offsets := map[int]int64{}
	info := k.cluster.GroupInfo(group)
	if info == nil {
		return offsets
	}
	for partition, commit := range info.Commits[topic] {
		offsets[int(partition)] = commit.Offset
	}
	return offsets
}

// Members returns how many members the group has.
func (k *Kafka) Members(group string) int {
	info := k.cluster.GroupInfo(group)
	if info == nil {
		return 0
	}
	return len(info.Members)
}

// Connections returns how many connections clients have open.
func (k *Kafka) Connections() int { return k.network.connections() }

// Stop makes the broker unreachable, as if its network were cut: connections break and new ones are refused. The broker
// keeps its state, and group sessions time out as usual. Stopping twice does nothing.
func (k *Kafka) Stop() { k.network.stop() }

// Restart makes a stopped or frozen broker reachable again at its address.
func (k *Kafka) Restart() error {
	if err := k.network.restart(); err != nil {
		return fmt.Errorf("restart in-process Kafka: %w", err)
	}
	return nil
}

// Freeze keeps connections open but passes no data, like a hanging broker or a silent network, until Restart or Close.
func (k *Kafka) Freeze() { k.network.freeze() }

// FallSilent makes all connections that are open now pass nothing any more, in either direction, as a firewall does
// that has forgotten them. Neither side notices. New connections work.
func (k *Kafka) FallSilent() { k.network.fallSilent() }

// Fault is a failure requested by FailNext.
type Fault struct{ handle *kfake.FaultHandle }

// Hits returns how many requests the fault has answered.
func (f *Fault) Hits() int { return f.handle.Hits() }

// Remove removes the fault.
func (f *Fault) Remove() { f.handle.Remove() }

// FailNext answers the next n requests of that kind with Kafka's error code, for example 22 for ILLEGAL_GENERATION,
// without acting on them. A negative n means until the fault is removed. An unknown code is answered as -1.
func (k *Kafka) FailNext(request kmsg.Key, code int16, n int) *Fault {
	known := kerr.TypedErrorForCode(code)
	if known == nil {
		known = kerr.UnknownServerError
	}
	return &Fault{k.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{request}, Err: known, Count: n})}
}

// Observe calls seen for each request of that kind until the Kafka is closed. The request is then answered as usual.
// seen must return quickly and must not call the Kafka.
func (k *Kafka) Observe(request kmsg.Key, seen func()) {
	k.cluster.ControlKey(int16(request), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.cluster.KeepControl()
		seen()
		return nil, nil, false
	})
}

// LoseAnswers breaks the connection of the next n requests of that kind instead of answering. The broker does not act
// on the requests.
func (k *Kafka) LoseAnswers(request kmsg.Key, n int) {
	for range n {
		k.cluster.ControlKey(int16(request), func(kmsg.Request) (kmsg.Response, error, bool) {
			return nil, fmt.Errorf("answer lost on purpose"), true
		})
	}
}

// Close stops the broker. Its records are lost. Closing twice does nothing.
func (k *Kafka) Close() {
	k.closing.Do(func() {
		k.sessions.close()
		k.network.close()
		k.cluster.Close()
	})
}

var errClosed = errors.New("in-process Kafka is closed")

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
