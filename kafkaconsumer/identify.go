package kafkaconsumer

import (
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

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
	id, err := f.conn.TopicID(p.ctx, p.topic)
	if err != nil {
		return fmt.Errorf("ask for the ID of topic %s: %w", p.topic, err)
	}
	if id == f.id || id == (kafkawire.TopicID{}) {
		return nil
	}
	if f.id == (kafkawire.TopicID{}) {
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
