package workload

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkapublisher"
)

const (
	outChannel = "out"
	publishKey = "publish:" + outChannel // of the handler that publishes
)

// Published is what a transactional handler publishes: of a job its message ID, of a step its lane and number. Streams,
// which an application publishes, share a lane, and each numbers its own messages.
type Published struct {
	ID   string `json:"id"`
	Lane string `json:"lane,omitempty"`
	N    int    `json:"n,omitempty"`

	Stream int `json:"stream,omitempty"`
}

// StreamLane is the lane that all streams share.
const StreamLane = "streams"

// StreamMessage returns the n-th message of a stream. Streams and their messages count from 1.
func StreamMessage(stream, n int) Published {
	return Published{ID: fmt.Sprintf("stream-%d/%d", stream, n), Lane: StreamLane, Stream: stream, N: n}
}

// outgoing declares the channel of what leaves. Only the messages of a lane have an order.
func (s Settings) outgoing() inbox.Option {
	return inbox.Outgoing(outChannel,
		inbox.ToKafka(kafkapublisher.Config{Brokers: s.Brokers, Topic: s.OutTopic, DialTimeout: 2 * time.Second,
			RequestTimeout: 3 * time.Second}),
		inbox.Publishes("published", func(p Published) string { return p.Lane }),
		inbox.PublishWith(handler.Backoff(func(int) time.Duration { return maxRetryDelay })))
}

// publish publishes in a handler's transaction, where the settings say to what topic.
func (h *Handlers) publish(ctx context.Context, tx *gorm.DB, p Published) error {
	if h.inbox == nil {
		return nil
	}
	if _, err := h.inbox().PublishTx(ctx, tx, inbox.Event{ID: p.ID, Payload: p}); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// ReadUnpublished returns how many messages are stored that are to leave and have not left.
func ReadUnpublished(ctx context.Context, db *sql.DB) (n int, err error) {
	const query = `SELECT count(*) FROM inbox_handler_statuses WHERE handler_key = '` + publishKey + `' AND completed_at IS NULL`
	err = db.QueryRowContext(ctx, query).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("read what has not left: %w", err)
	}
	return n, nil
}

// PublishedVerdict compares what has left with what transactional handlers have committed.
type PublishedVerdict struct {
	// Records and Messages count what is in the topic. A message may be there several times.
	Records, Messages int
	// Missing counts committed messages that are not there, Unknown those there that were not committed.
	Missing, Unknown int
	// OutOfOrder counts steps, and messages of a stream, whose first record does not come directly after the first record
	// of the one before.
	OutOfOrder int
}

// ReadPublished reads the topic of what leaves from its beginning. streams are how many messages each stream has
// committed.
func ReadPublished(
	ctx context.Context, db *sql.DB, brokers []string, topic string, streams []int,
) (v PublishedVerdict, err error) {
	committed := map[string]bool{}
	for i, count := range streams {
		for n := range count {
			committed[StreamMessage(i+1, n+1).ID] = true
		}
	}
	if err = each(ctx, db, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		committed[id] = true
		return err
	}, `SELECT message_id FROM effects`); err != nil {
		return v, fmt.Errorf("read effects: %w", err)
	}
	if err = each(ctx, db, func(rows *sql.Rows) error {
		var step Step
		err := rows.Scan(&step.Lane, &step.N)
		committed[step.id()] = true
		return err
	}, `SELECT lane, n FROM steps WHERE handler = 'tx'`); err != nil {
		return v, fmt.Errorf("read steps: %w", err)
	}
	type order struct {
		lane   string
		stream int
	}
	known, last := map[string]bool{}, map[order]int{}
	err = readAll(ctx, brokers, topic, func(r *kgo.Record) error {
		var p Published
		if err := json.Unmarshal(r.Value, &p); err != nil {
			return fmt.Errorf("record %d of partition %d: %w", r.Offset, r.Partition, err)
		}
		v.Records++
		if known[p.ID] {
			return nil
		}
		known[p.ID] = true
		if !committed[p.ID] {
			v.Unknown++
		}
		if p.Lane != "" {
			of := order{p.Lane, p.Stream}
			if p.N != last[of]+1 {
				v.OutOfOrder++
			}
			last[of] = p.N
		}
		return nil
	})
	v.Messages, v.Missing = len(known), len(committed)-(len(known)-v.Unknown)
	return v, err
}

// readAll reads the records that a topic has now.
func readAll(ctx context.Context, brokers []string, topic string, record func(*kgo.Record) error) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequestTimeoutOverhead(answerTimeout))
	if err != nil {
		return fmt.Errorf("read topic %s: %w", topic, err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("read topic %s: %w", topic, err)
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("read topic %s: %w", topic, err)
		}
		for _, r := range fetches.Records() {
			if err := record(r); err != nil {
				return err
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		}
	}
	return nil
}
