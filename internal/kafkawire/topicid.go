package kafkawire

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// TopicID identifies a topic to brokers. A topic that is deleted and created again has the same name and another ID.
// Zero means no ID.
type TopicID [16]byte

// topicIDVersion is the first version of metadata requests with topic IDs. kafka-go only has earlier versions.
const topicIDVersion = 10

// TopicID asks for the topic's ID. It returns zero from a broker too old to know any. The answer to the last fetch
// stays valid.
func (c *FetchConn) TopicID(ctx context.Context, topic string) (id TopicID, err error) {
	if !c.identifies {
		return id, nil
	}
	kept := c.memory
	c.memory = nil
	defer func() { c.memory = kept }()
	const limit = 4 << 20 // it lists all brokers and all partitions of the topic: 90,000 fit
	answer, err := c.exchange(ctx, func() error { return c.writeTopicIDRequest(topic) }, 0, limit, nil)
	if err != nil {
		return id, err
	}
	return readTopicID(answer, topic)
}

func (c *FetchConn) writeTopicIDRequest(topic string) error {
	const none = 0 // tagged fields
	order := binary.BigEndian
	b := order.AppendUint16(make([]byte, 4, 64+len(c.clientID)+len(topic)), uint16(protocol.Metadata))
	b = order.AppendUint16(b, topicIDVersion)
	b = order.AppendUint32(b, uint32(c.correlationID))
	b = order.AppendUint16(b, uint16(len(c.clientID)))
	b = append(append(b, c.clientID...), none)
	b = append(b, 1+1) // one topic, by its name and not by an ID
	b = append(b, make([]byte, len(TopicID{}))...)
	b = binary.AppendUvarint(b, uint64(len(topic))+1)
	b = append(append(b, topic...), none)
	b = append(b, 0, 0, 0, none) // do not create it; no operations
	order.PutUint32(b, uint32(len(b)-4))
	_, err := c.Write(b)
	return err
}

func readTopicID(c *cursor, topic string) (id TopicID, err error) {
	c.tags()
	c.int32() // the throttle time, which the broker enforces
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
		return TopicID{}, fmt.Errorf("%w: %w", errOtherAnswer, kafka.Unknown)
	}
	if code != 0 {
		return TopicID{}, kafka.Error(code)
	}
	return id, nil
}
