package kafkaconsumer

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"

	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/internal/kafkawire"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// logID identifies the log of a topic: a topic that is created again has another ID. It is zero if it is unknown.
type logID struct {
	topic   kafkawire.TopicID
	cluster string // its name, which may be empty
}

// position is an offset, and the log in which it is one. The offset is -1 where there is none.
type position struct {
	offset int64
	log    logID
}

// Offsets are committed with metadata that names the topic of which they are: inbox topic=<ID> cluster=<ID>. Kafka's
// commits only have the topic's name, so a commit that arrives after its topic was created again is stored for the new
// log. The next member would begin there and never read the first records.
//
// Tools such as MirrorMaker copy groups to another cluster, where the topic has another ID. They translate the offset
// and copy the metadata. So the metadata counts only in the cluster that it names.
const (
	metadataTopic   = "inbox topic="
	metadataCluster = " cluster="
)

// metadata returns what an offset in the log is committed with. The topic's ID is written as Kafka's tools do.
func (log logID) metadata() string {
	if log.topic == (kafkawire.TopicID{}) {
		return ""
	}
	return metadataTopic + base64.RawURLEncoding.EncodeToString(log.topic[:]) + metadataCluster + log.cluster
}

// logOf returns the log that the metadata of a committed offset names, zero if the metadata is not ours.
func logOf(metadata string) logID {
	rest, ours := strings.CutPrefix(metadata, metadataTopic)
	topic, cluster, named := strings.Cut(rest, metadataCluster)
	id, err := base64.RawURLEncoding.DecodeString(topic)
	if !ours || !named || err != nil || len(id) != len(kafkawire.TopicID{}) {
		return logID{}
	}
	return logID{kafkawire.TopicID(id), cluster}
}

// maxNamed is how many offsets are committed with metadata at most. Brokers store the offsets of a request as one
// batch, of 1 MiB by default, which the metadata of thousands of partitions would exceed.
const maxNamed = 1000

// offsetCommit is what to commit for a partition.
type offsetCommit struct {
	topic string
	id    int
	at    position
}

// committer is the only one that commits in its generation, with one request in flight. Commits
// therefore neither overtake each other nor move back. The one exception, beginGroup, commits
// before the committer has anything to commit.
//
// It commits on its own connection to the group's coordinator. kafka-go's Generation commits no metadata, and does not
// ask again which broker is the coordinator.
type committer struct {
	session *session
	conn    *kafkawire.Conn // nil: to be made
}

// run commits the due offsets every interval, until ctx ends. It returns an error once a commit is refused, or once its
// response does not come in time: most often the generation is over then, and the member has to join again. While no
// coordinator can be reached, offsets stay due, and heartbeats decide how long the generation lasts.
func (c *committer) run(ctx context.Context) error {
	consumer := c.session.consumer
	interval := consumer.cfg.CommitInterval
	retry := routine.Backoff{First: interval, Max: maxRefusalBackoff}
	for pause := interval; routine.Sleep(ctx, pause); {
		err := c.flush(ctx, consumer.hardCtx)
		switch {
		case err == nil:
			pause = interval
			retry.Reset()
		case !unreached(err):
			c.report(err)
			return err
		case ctx.Err() == nil: // else the last flush follows
			c.report(err)
			pause = retry.Next()
		}
	}
	return nil
}

// flush commits the due offsets. It connects until the end of connecting, and sends requests until the end of sending.
// A request that is sent must not be given up sooner: it could overtake the next one.
//
// If its connection is lost, or the coordinator has moved, it asks which broker is the coordinator now and commits once
// more. Brokers close connections whose SASL session expired, for example. The generation is still alive: this member
// joins again only after the session has returned. Once it is over, brokers refuse the commit. A connection that cannot
// be made is not tried again at once: the login may be refused.
func (c *committer) flush(connecting, sending context.Context) error {
	var all []offsetCommit
	var partitions []*partition
	for _, p := range c.session.partitions {
		if at, due := p.due(); due {
			all, partitions = append(all, offsetCommit{p.topic, p.id, at}), append(partitions, p)
		}
	}
	if len(all) == 0 {
		if !slices.ContainsFunc(c.session.partitions, func(p *partition) bool { return p.caughtUpAt().IsZero() }) {
			c.session.consumer.committing.Forget(nil) // another member committed what failed in an earlier generation
			c.session.consumer.committing.Clear()
		}
		return nil
	}
	err := c.try(connecting, sending, all)
	if unreached(err) && !errors.Is(err, errUnreachable) && connecting.Err() == nil {
		before := err
		if err = c.try(connecting, sending, all); unreached(err) {
			err = fmt.Errorf("%w, and once more: %w", before, err)
		}
	}
	if err != nil {
		return fmt.Errorf("commit offsets of %d partitions: %w", len(all), err)
	}
	for i, p := range partitions {
		p.commit(all[i].at.offset)
	}
	c.session.consumer.committing.End(nil)
	return nil
}

func (c *committer) report(err error) {
	consumer := c.session.consumer
	consumer.committing.Begin(nil, consumer.cfg.explain(err))
}

// unreached reports whether a commit failed although the generation may be alive: the coordinator was not found, is
// another one by now, or did not get the request. The response of a commit whose connection was lost may be lost, too.
func unreached(err error) bool {
	return kafkaclient.Lost(err) || kafkaclient.IsAny(err, errUnreachable, kafka.NotCoordinatorForGroup,
		kafka.GroupCoordinatorNotAvailable, kafka.GroupLoadInProgress)
}

// try commits offsets once. If the brokers refuse the metadata, it commits without any from then on.
func (c *committer) try(connecting, sending context.Context, all []offsetCommit) error {
	if err := c.connect(connecting); err != nil {
		return err
	}
	consumer := c.session.consumer
	bare := consumer.bare.Load()
	err := c.conn.Commit(sending, c.session.commitRequest(all, bare))
	if errors.Is(err, kafka.OffsetMetadataTooLarge) && !bare {
		consumer.bare.Store(true)
		consumer.log.Warn("inbox: the brokers refuse the metadata of offsets, so an offset that is committed while its topic " +
			"is created again may be taken for one of the new log; raise offset.metadata.max.bytes and restart this process")
		err = c.conn.Commit(sending, c.session.commitRequest(all, true))
	}
	if err != nil {
		c.hangUp() // it may be in an unknown state, or not lead to the coordinator
	}
	return err
}

// commitRequest returns the request to commit offsets in the session's generation. Those of a topic follow each other.
// There is one request, however many they are: the first commit of a group is its beginning, which must be whole.
func (s *session) commitRequest(all []offsetCommit, bare bool) *offsetcommit.Request {
	bare = bare || len(all) > maxNamed
	request := &offsetcommit.Request{GroupID: s.consumer.cfg.GroupID, GenerationID: s.gen.ID, MemberID: s.gen.MemberID,
		RetentionTimeMs: -1}
	for i, one := range all {
		if i == 0 || all[i-1].topic != one.topic {
			request.Topics = append(request.Topics, offsetcommit.RequestTopic{Name: one.topic})
		}
		p := offsetcommit.RequestPartition{PartitionIndex: int32(one.id), CommittedOffset: one.at.offset,
			CommittedLeaderEpoch: -1}
		if !bare {
			p.CommittedMetadata = one.at.log.metadata()
		}
		topic := &request.Topics[len(request.Topics)-1]
		topic.Partitions = append(topic.Partitions, p)
	}
	return request
}

var errUnreachable = errors.New("cannot reach the coordinator")

// maxUnused is how long a connection may be unused. Later a proxy may have dropped it without a word, and a commit
// would wait for its timeout.
const maxUnused = time.Minute

// connect asks which broker is the group's coordinator and connects to it, unless there is a connection in use.
func (c *committer) connect(ctx context.Context) error {
	if c.conn != nil && c.conn.Unused() < maxUnused {
		return nil
	}
	c.hangUp()
	network, group := c.session.consumer.network, c.session.consumer.cfg.GroupID
	request := &kafka.FindCoordinatorRequest{Key: group, KeyType: kafka.CoordinatorKeyTypeConsumer}
	found, err := network.Kafka.FindCoordinator(ctx, request)
	if kafkaclient.Lost(err) {
		network.CloseIdle() // they may be as old as the lost one
		found, err = network.Kafka.FindCoordinator(ctx, request)
	}
	if err == nil {
		err = found.Error
	}
	if err != nil {
		return fmt.Errorf("%w of group %q: ask for its address: %w", errUnreachable, group, err)
	}
	address := net.JoinHostPort(found.Coordinator.Host, strconv.Itoa(found.Coordinator.Port))
	if c.conn, err = network.dialBroker(ctx, address); err != nil {
		return fmt.Errorf("%w of group %q: connect to %s: %w", errUnreachable, group, address, err)
	}
	return nil
}

func (c *committer) hangUp() {
	if c.conn != nil {
		c.conn.HangUp()
		c.conn = nil
	}
}
