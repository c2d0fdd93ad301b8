// Package broker is a Kafka cluster in memory, for simulations inside a testing/synctest bubble. franz-go's fake
// cluster has the logs, groups and offsets. A network in memory connects it with its clients, and lets each request of
// a client be delayed, fail or lose its response.
//
// All waits are for channels and the clock, so that they are durable blocks in a bubble. There is no replication,
// compaction or retention by time, connections have no TLS, and a request without a response, such as one to produce
// with acks 0, blocks its connection.
package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/internal/routine"
)

// Broker is a cluster. Its methods are safe for concurrent use.
type Broker struct {
	// OnCommit is called with each offset that a group has committed, before the client gets the response and before
	// any other commit. Set it before the first client connects. It must neither commit nor call Commits.
	OnCommit func(Commit)

	cluster    *kfake.Cluster
	nodes      int
	committing routine.Lock // held while a broker works on a commit; it guards commits and topics
	commits    []Commit
	topics     map[string][16]byte // their IDs

	mu        sync.Mutex
	listeners map[address]*listener
	clients   []*Client
	// rebalances has the last rebalance of each group.
	rebalances map[string]rebalance
	closed     chan struct{}
	asking     sync.WaitGroup // the cluster, which answers nothing any more once it is closed
}

// rebalance is one that ends a generation, and until when it may wait for members.
type rebalance struct {
	generation int32
	until      time.Time
}

// Commit is an offset that a group has committed for a partition.
type Commit struct {
	At            time.Time
	Group, Member string
	Generation    int // negative if it was committed by no member
	Topic         string
	TopicID       [16]byte // of the topic at that time: a topic that is created again has another
	Partition     int
	Offset        int64
	Metadata      string
}

// Partition names a partition.
type Partition struct {
	Topic string
	ID    int
}

// Record is a record to produce or a record of a log.
type Record struct {
	Key, Value []byte
	Headers    []kafka.Header
	Time       time.Time // when it is produced, if zero
	Offset     int64     // set by the log
}

// New starts a cluster of so many brokers, without topics. Close it in the same bubble, and call nothing after that.
func New(nodes int, opts ...kfake.Opt) (*Broker, error) {
	b := &Broker{nodes: nodes, committing: routine.NewLock(), listeners: map[address]*listener{},
		topics: map[string][16]byte{}, rebalances: map[string]rebalance{}, closed: make(chan struct{})}
	opts = append(opts, kfake.NumBrokers(nodes), kfake.ListenFn(b.listen))
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, err
	}
	b.cluster = cluster
	return b, nil
}

// listen implements kfake.ListenFn. Each call is for another broker.
func (b *Broker) listen(string, string) (net.Listener, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := newListener(address(fmt.Sprintf("broker-%d:9092", len(b.listeners))))
	b.listeners[l.address] = l
	return l, nil
}

func (b *Broker) connect(ctx context.Context, _, to string) (net.Conn, error) {
	b.mu.Lock()
	l := b.listeners[address(to)]
	b.mu.Unlock()
	if l == nil {
		return nil, refused(address(to))
	}
	return l.dial(ctx)
}

// Close stops the brokers and breaks all connections.
func (b *Broker) Close() {
	b.mu.Lock()
	clients := b.clients
	close(b.closed)
	b.mu.Unlock()
	for _, c := range clients {
		c.Kill()
	}
	b.asking.Wait()
	b.cluster.Close()
}

// Addresses returns the brokers' addresses.
func (b *Broker) Addresses() []string { return b.cluster.ListenAddrs() }

// CreateTopic creates a topic, whose partitions have their leaders on the brokers in turn.
func (b *Broker) CreateTopic(name string, partitions int) error {
	defer b.betweenCommits()()
	if err := b.cluster.CreateTopic(name, int32(partitions), nil); err != nil {
		return fmt.Errorf("create topic %q: %w", name, err)
	}
	b.topics[name] = b.cluster.TopicInfo(name).TopicID
	for id := range partitions {
		if err := b.cluster.MoveTopicPartition(name, int32(id), int32(id%b.nodes)); err != nil {
			return fmt.Errorf("move %s/%d: %w", name, id, err)
		}
	}
	return nil
}

// DeleteTopic deletes a topic with the offsets committed for it.
func (b *Broker) DeleteTopic(name string) error {
	defer b.betweenCommits()()
	return b.cluster.DeleteTopic(name)
}

// RecreateTopic deletes a topic and creates it again, empty, with as many partitions.
func (b *Broker) RecreateTopic(name string) error {
	partitions := len(b.cluster.PartitionInfos(name))
	if err := b.DeleteTopic(name); err != nil {
		return err
	}
	return b.CreateTopic(name, partitions)
}

// betweenCommits waits until no commit is in progress, and holds up the next ones until done is called.
func (b *Broker) betweenCommits() (done func()) {
	_ = b.committing.Acquire(context.Background()) // without an end, it does not fail
	return b.committing.Release
}

// DeleteRecords deletes the records of a partition before an offset, as retention does.
func (b *Broker) DeleteRecords(from Partition, before int64) error {
	return b.cluster.DeleteRecords(from.Topic, int32(from.ID), before)
}

// MoveLeader makes the next broker the leader of a partition.
func (b *Broker) MoveLeader(of Partition) error {
	next := (int(b.cluster.LeaderFor(of.Topic, int32(of.ID))) + 1) % b.nodes
	return b.cluster.MoveTopicPartition(of.Topic, int32(of.ID), int32(next))
}

// MoveCoordinators gives groups other coordinators, if there are several brokers. The groups stay as they are.
func (b *Broker) MoveCoordinators() { b.cluster.RehashCoordinators() }

// MoveCoordinator is MoveCoordinators, until this group has another coordinator. There must be several brokers.
func (b *Broker) MoveCoordinator(group string) {
	for before := b.cluster.CoordinatorFor(group); b.cluster.CoordinatorFor(group) == before; {
		b.cluster.RehashCoordinators()
	}
}

// End returns the offset of the next record of a partition.
func (b *Broker) End(of Partition) int64 {
	if info := b.cluster.PartitionInfo(of.Topic, int32(of.ID)); info != nil {
		return info.HighWatermark
	}
	return 0
}

// Members returns the members of a group.
func (b *Broker) Members(group string) []string {
	var ids []string
	if info := b.group(group); info != nil {
		for _, m := range info.Members {
			ids = append(ids, m.MemberID)
		}
	}
	return ids
}

// Evict removes a member from its group, which begins a rebalance.
func (b *Broker) Evict(ctx context.Context, group, member string) error {
	return b.call(func(c *kafka.Client) error {
		answer, err := c.LeaveGroup(ctx, &kafka.LeaveGroupRequest{GroupID: group,
			Members: []kafka.LeaveGroupRequestMember{{ID: member}}})
		if err != nil {
			return err
		}
		return answer.Error
	})
}

// Committed returns the offsets that a group has committed.
func (b *Broker) Committed(group string) map[Partition]int64 {
	offsets := map[Partition]int64{}
	if info := b.group(group); info != nil {
		for topic, partitions := range info.Commits {
			for id, commit := range partitions {
				offsets[Partition{topic, int(id)}] = commit.Offset
			}
		}
	}
	return offsets
}

// Commits returns all commits that were stored, in their order. Those of transactions are not among them.
func (b *Broker) Commits() []Commit {
	defer b.betweenCommits()() // what Committed has returned is then in the log
	return slices.Clone(b.commits)
}

// Produce appends records to a partition and returns the offset of the first one.
func (b *Broker) Produce(ctx context.Context, to Partition, records ...Record) (first int64, err error) {
	batch := make([]kafka.Record, len(records))
	for i, r := range records {
		if r.Time.IsZero() {
			r.Time = time.Now()
		}
		batch[i] = kafka.Record{Time: r.Time, Key: kafka.NewBytes(r.Key), Value: kafka.NewBytes(r.Value), Headers: r.Headers}
	}
	err = b.call(func(c *kafka.Client) error {
		answer, err := c.Produce(ctx, &kafka.ProduceRequest{Topic: to.Topic, Partition: to.ID,
			RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(batch...)})
		if err != nil {
			return err
		}
		first = answer.BaseOffset
		return answer.Error
	})
	return first, err
}

// Records returns the records that a partition holds.
func (b *Broker) Records(ctx context.Context, of Partition) (all []Record, err error) {
	info := b.cluster.PartitionInfo(of.Topic, int32(of.ID))
	if info == nil {
		return nil, fmt.Errorf("partition %s/%d: %w", of.Topic, of.ID, kafka.UnknownTopicOrPartition)
	}
	err = b.call(func(c *kafka.Client) error {
		for next := info.LogStartOffset; next < info.HighWatermark; {
			answer, err := c.Fetch(ctx, &kafka.FetchRequest{Topic: of.Topic, Partition: of.ID, Offset: next, MinBytes: 1,
				MaxBytes: 1 << 20, MaxWait: time.Second})
			if err == nil {
				err = answer.Error
			}
			for from := next; err == nil; {
				var r *kafka.Record
				if r, err = answer.Records.ReadRecord(); err != nil || r.Offset < from { // a batch comes whole
					continue
				}
				key, keyErr := kafka.ReadAll(r.Key)
				value, valueErr := kafka.ReadAll(r.Value)
				all = append(all, Record{Key: key, Value: value, Headers: r.Headers, Time: r.Time, Offset: r.Offset})
				next, err = r.Offset+1, errors.Join(keyErr, valueErr)
			}
			if err != io.EOF {
				return err
			}
		}
		return nil
	})
	return all, err
}

// call makes requests on new connections that no Link carries.
func (b *Broker) call(do func(*kafka.Client) error) error {
	transport := &kafka.Transport{Dial: b.connect}
	defer transport.CloseIdleConnections()
	return do(&kafka.Client{Addr: kafka.TCP(b.Addresses()...), Transport: transport})
}

// ask sends a request to a broker and returns the response.
func (b *Broker) ask(broker net.Conn, request []byte) (response []byte, err error) {
	switch apiOf(request) {
	case kmsg.JoinGroup:
		if err := b.admit(request); err != nil {
			return nil, err
		}
	case kmsg.OffsetCommit:
		defer b.betweenCommits()()
		defer func() {
			if err == nil {
				err = b.record(request, response)
			}
		}()
	}
	if _, err := broker.Write(request); err != nil {
		return nil, err
	}
	return readFrame(broker)
}

// admit waits until a new member may join its group. The cluster starts the rebalance timeout anew with each new
// member, and sometimes counts one waiting member too few. Members that give up and come back as new ones could then
// prolong a rebalance forever. Kafka's timeout starts once per rebalance, so we let new members wait after it until the
// rebalance is complete.
func (b *Broker) admit(request []byte) error {
	join := kmsg.NewPtrJoinGroupRequest()
	if err := decodeRequest(request, join); err != nil {
		return err
	}
	for {
		info := b.group(join.Group)
		if info == nil {
			return nil
		}
		b.mu.Lock()
		r := b.rebalances[join.Group]
		if info.State != "PreparingRebalance" || r.generation != info.Epoch {
			timeout := time.Duration(join.RebalanceTimeoutMillis) * time.Millisecond
			r = rebalance{info.Epoch, time.Now().Add(timeout)}
			b.rebalances[join.Group] = r
		}
		b.mu.Unlock()
		known := slices.ContainsFunc(info.Members, func(m kfake.GroupMember) bool { return m.MemberID == join.MemberID })
		if known || time.Now().Before(r.until) {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-b.closed:
		}
	}
}

// group returns nil if there is no such group, or the cluster is closed.
func (b *Broker) group(name string) *kfake.GroupInfo {
	b.mu.Lock()
	select {
	case <-b.closed:
		b.mu.Unlock()
		return nil
	default:
	}
	b.asking.Add(1)
	b.mu.Unlock()
	defer b.asking.Done()
	return b.cluster.GroupInfo(name)
}

// apiOf returns the API of a request.
func apiOf(request []byte) kmsg.Key {
	return kmsg.Key((&kbin.Reader{Src: request[min(4, len(request)):]}).Int16()) // after the length
}

// decodeRequest decodes a request of the API of into.
func decodeRequest(request []byte, into kmsg.Request) error {
	reader := kbin.Reader{Src: request[6:]} // after the length and the API
	into.SetVersion(reader.Int16())
	reader.Int32() // the correlation ID
	reader.NullableString()
	if into.IsFlexible() {
		kmsg.SkipTags(&reader)
	}
	return into.ReadFrom(reader.Src)
}

// record adds the commits of a request that the broker has stored to the log.
func (b *Broker) record(request, response []byte) error {
	asked := kmsg.NewPtrOffsetCommitRequest()
	if err := decodeRequest(request, asked); err != nil {
		return err
	}
	answered := asked.ResponseKind().(*kmsg.OffsetCommitResponse)
	answer := kbin.Reader{Src: response[8:]} // after the length and the correlation ID
	if asked.IsFlexible() {
		kmsg.SkipTags(&answer)
	}
	if err := answered.ReadFrom(answer.Src); err != nil {
		return err
	}
	stored := map[Partition]bool{}
	for _, topic := range answered.Topics {
		for _, p := range topic.Partitions {
			stored[Partition{topic.Topic, int(p.Partition)}] = p.ErrorCode == 0
		}
	}
	for _, topic := range asked.Topics {
		for _, p := range topic.Partitions {
			if !stored[Partition{topic.Topic, int(p.Partition)}] {
				continue
			}
			c := Commit{At: time.Now(), Group: asked.Group, Member: asked.MemberID, Generation: int(asked.Generation),
				Topic: topic.Topic, TopicID: b.topics[topic.Topic], Partition: int(p.Partition), Offset: p.Offset}
			if p.Metadata != nil {
				c.Metadata = *p.Metadata
			}
			b.commits = append(b.commits, c)
			if b.OnCommit != nil {
				b.OnCommit(c)
			}
		}
	}
	return nil
}
