package kafkaconsumer

import (
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/internal/kafkawire"
)

// identifyEvery bounds how long records are delivered on a connection before the topic's ID is
// asked for again. After unaskedFor without a fetch in flight it is asked for at once. No topic can
// be deleted and created again in less time.
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

// identify fails if the topic is not the one that was read up to offset. The offset does not reveal
// that once the new log has grown past it. Leader epochs do not either, since they begin low in
// each log.
//
// A fetch that is waiting while its topic is deleted gets an error. The dangerous case is this one:
//
//  1. No fetch is in flight for a while, for example because nothing can be accepted.
//  2. The topic is deleted and created again.
//  3. The next fetch, on the old connection, is answered from the new log. The answer may be empty,
//     if the new log ends at this very offset.
//
// A broker knows a topic's new ID before it has a log for it, and answers the requests of one
// connection in order. So we ask for the ID after an answer and before its records are delivered:
//
//   - with the first records on each connection, so after each error as well
//   - after unaskedFor without a fetch
//   - every identifyEvery while there are records, and once more after the last of them
//
// Once the ID is seen to have changed, the new log is read from its start, including what was
// already delivered of it.
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
	if first == offset { // no record of the new log was skipped
		f.id, f.epoch = id, 0
		return nil
	}
	return &TopicRecreatedError{Topic: p.topic, Partition: p.id, Offset: offset, First: first, id: id}
}
