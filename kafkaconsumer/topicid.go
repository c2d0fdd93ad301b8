package kafkaconsumer

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// topicID is what a broker knows a topic by: one that is deleted and created
// again has the same name and another ID. Zero is none.
type topicID [16]byte

// topicIDVersion is the first version of metadata requests that tells IDs.
// kafka-go's end before it.
const topicIDVersion = 10

// identifyEvery bounds how long records are delivered on a connection without
// the topic's ID being asked for. unaskedFor is how long there may be no fetch on its
// way before it is asked for at once: in less, no topic is deleted and created again.
const (
	identifyEvery = 3 * time.Second
	unaskedFor    = 250 * time.Millisecond
)

// dial connects to the leader and asks it for the topic's ID.
func (f *fetcher) dial(offset int64) error {
	conn, err := f.network.dialLeader(f.partition.ctx, f.partition.topic, f.partition.id)
	if err != nil {
		return err
	}
	f.conn, f.identified = conn, time.Time{}
	return f.identify(offset)
}

// identify fails if the topic is not the one that was read up to offset. An
// offset says nothing about that once the new log has grown past it, nor do
// leader epochs, which begin low in each.
//
// A fetch that waits when its topic goes is answered with an error. One that comes
// later may be answered from the new log, on a connection that was made before: after
// any time without a fetch, while nothing could be accepted, say. That answer may be
// empty, if the new log ends at this very offset. A broker knows a topic's new ID before
// it has a log for it, and answers the requests of a connection one by one. So the ID is
// asked for behind an answer and before its records are delivered: with the first
// records on each connection, so after each error; after unaskedFor without a fetch; and
// every identifyEvery while there are records, once more behind the last of them.
// Once it is seen to have changed, the new log is read from its start, with what was
// delivered of it before.
func (f *fetcher) identify(offset int64) error {
	p := f.partition
	id, err := f.conn.topicID(p.ctx, p.topic)
	if err != nil {
		return fmt.Errorf("ask for the ID of topic %s: %w", p.topic, err)
	}
	if id == f.id || id == (topicID{}) {
		return nil
	}
	if f.id == (topicID{}) {
		f.id = id
		return nil
	}
	first, err := f.listOffset(kafka.FirstOffset)
	if err != nil {
		return err
	}
	if first == offset { // nothing is missing
		f.id, f.epoch = id, 0
		return nil
	}
	return &TopicRecreatedError{Topic: p.topic, Partition: p.id, Offset: offset, First: first, id: id}
}

// topicID asks for the topic's ID; zero from a broker too old to know any. The
// answer to the last fetch stays as it is.
func (c *fetchConn) topicID(ctx context.Context, topic string) (id topicID, err error) {
	if !c.identifies {
		return id, nil
	}
	kept := c.memory
	c.memory = nil
	defer func() { c.memory = kept }()
	const most = 4 << 20 // it lists all brokers, and all partitions of the topic: 90,000 are less
	answer, err := c.exchange(ctx, func() error { return c.writeTopicIDRequest(topic) }, 0, most, nil)
	if err != nil {
		return id, err
	}
	return readTopicID(answer, topic)
}

func (c *fetchConn) writeTopicIDRequest(topic string) error {
	const none = 0 // tagged fields
	order := binary.BigEndian
	b := order.AppendUint16(make([]byte, 4, 64+len(c.cfg.ClientID)+len(topic)), uint16(protocol.Metadata))
	b = order.AppendUint16(b, topicIDVersion)
	b = order.AppendUint32(b, uint32(c.correlationID))
	b = order.AppendUint16(b, uint16(len(c.cfg.ClientID)))
	b = append(append(b, c.cfg.ClientID...), none)
	b = append(b, 1+1) // one topic, by its name and not by an ID
	b = append(b, make([]byte, len(topicID{}))...)
	b = binary.AppendUvarint(b, uint64(len(topic))+1)
	b = append(append(b, topic...), none)
	b = append(b, 0, 0, 0, none) // do not create it; no operations
	order.PutUint32(b, uint32(len(b)-4))
	_, err := c.Write(b)
	return err
}

func readTopicID(c *cursor, topic string) (id topicID, err error) {
	c.tags()
	c.int32() // throttling is the broker's to do
	for n := c.uvarint(); n > 1 && !c.short; n-- {
		c.int32() // node
		c.compact()
		c.int32() // port
		c.compact()
		c.tags()
	}
	c.compact() // cluster
	c.int32()   // controller
	topics, code, name := c.uvarint(), c.int16(), string(c.compact())
	copy(id[:], c.take(int64(len(id))))
	if c.short || topics != 1+1 || name != topic {
		return topicID{}, fmt.Errorf("%w: %w", errOtherAnswer, kafka.Unknown)
	}
	if code != 0 {
		return topicID{}, kafka.Error(code)
	}
	return id, nil
}
