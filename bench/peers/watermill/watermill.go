// Package watermill runs Watermill's SQL Pub/Sub (github.com/ThreeDotsLabs/watermill-sql) as its
// users do. It is a log with an offset for each consumer group, or a queue for one consumer. It has
// no rows per handler, no retries of one message beside others, and no parked messages.
package watermill

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

const (
	topic = "bench"
	group = "bench-handler-1"
)

// Settings select the adapters. Everything else is Watermill's default.
type Settings struct {
	Queue bool // PostgreSQLQueueSchema instead of DefaultPostgreSQLSchema
	Batch int  // SubscribeBatchSize; 0 is Watermill's default, 100
}

// payloadType is the column type that the documentation of GeneratePayloadType names for payloads
// that are not JSON.
func payloadType(string) string { return "BYTEA" }

func (s Settings) schema() sql.SchemaAdapter {
	if s.Queue {
		return sql.PostgreSQLQueueSchema{GeneratePayloadType: payloadType, SubscribeBatchSize: s.Batch}
	}
	return sql.DefaultPostgreSQLSchema{GeneratePayloadType: payloadType, SubscribeBatchSize: s.Batch}
}

// offsets returns the adapter for offsets. For a queue it deletes handled rows, as that adapter's
// own tests do, because rows that are only marked would slow it down.
func (s Settings) offsets() sql.OffsetsAdapter {
	if s.Queue {
		return sql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true}
	}
	return sql.DefaultPostgreSQLOffsetsAdapter{}
}

// Watermill is a publisher and a subscriber of one topic.
type Watermill struct {
	settings   Settings
	pool       *pgxpool.Pool
	publisher  *sql.Publisher
	subscriber *sql.Subscriber
	last       int64 // offset of the topic's last message
}

// Open creates the topic's tables.
func Open(ctx context.Context, dsn string, s Settings) (*Watermill, error) {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return nil, err
	}
	w := &Watermill{settings: s, pool: pool}
	if err := w.open(); err != nil {
		pool.Close()
		return nil, err
	}
	return w, nil
}

func (w *Watermill) open() (err error) {
	db := sql.BeginnerFromPgx(w.pool)
	if w.publisher, err = sql.NewPublisher(db, sql.PublisherConfig{SchemaAdapter: w.settings.schema()},
		watermill.NopLogger{}); err != nil {
		return err
	}
	config := sql.SubscriberConfig{SchemaAdapter: w.settings.schema(), OffsetsAdapter: w.settings.offsets()}
	if !w.settings.Queue { // a queue rejects a consumer group
		config.ConsumerGroup = group
	}
	if w.subscriber, err = sql.NewSubscriber(db, config, watermill.NopLogger{}); err != nil {
		return err
	}
	return w.subscriber.SubscribeInitialize(topic)
}

// Close ends the subscriber and closes the pool.
func (w *Watermill) Close() {
	_ = w.subscriber.Close()
	_ = w.publisher.Close()
	w.pool.Close()
}

// PublishAll publishes n messages in batches on several connections at once.
func (w *Watermill) PublishAll(ctx context.Context, n, batch, connections int) error {
	return trial.InBatches(ctx, n, batch, connections, func(ctx context.Context, from, to int) error {
		messages := make([]*message.Message, to-from)
		for i := range messages {
			messages[i] = message.NewMessageWithContext(ctx, uuid.NewString(), ours.Payload)
		}
		return w.publisher.Publish(topic, messages...)
	})
}

// Prepare records the offset of the topic's last message.
func (w *Watermill) Prepare(ctx context.Context) error {
	order := `transaction_id DESC, "offset" DESC`
	if w.settings.Queue {
		order = `"offset" DESC`
	}
	return w.pool.QueryRow(ctx, `SELECT "offset" FROM watermill_bench ORDER BY `+order+` LIMIT 1`).Scan(&w.last)
}

// Work handles n messages. It returns when the last acknowledgement is stored in the database.
func (w *Watermill) Work(ctx context.Context, n int, run func(payload []byte)) error {
	messages, err := w.subscriber.Subscribe(context.WithoutCancel(ctx), topic)
	if err != nil {
		return err
	}
	for range n {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-messages:
			run(m.Payload)
			m.Ack()
		}
	}
	return w.stored(ctx)
}

// stored waits until the acknowledgement of the last message is stored. Messages are acknowledged
// by batch, after all of the batch has been handled.
func (w *Watermill) stored(ctx context.Context) error {
	query, args := `SELECT offset_acked = $1 FROM watermill_offsets_bench WHERE consumer_group = $2`, []any{w.last, group}
	if w.settings.Queue {
		query, args = `SELECT NOT EXISTS (SELECT FROM watermill_bench WHERE "offset" = $1)`, []any{w.last}
	}
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		var done bool
		if err := w.pool.QueryRow(ctx, query, args...).Scan(&done); err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// CheckPublished returns an error unless the topic has n messages.
func (w *Watermill) CheckPublished(ctx context.Context, n int) error {
	var all int
	if err := w.pool.QueryRow(ctx, `SELECT count(*) FROM watermill_bench WHERE length(payload) = $1`,
		ours.PayloadBytes).Scan(&all); err != nil {
		return err
	}
	if all != n {
		return fmt.Errorf("watermill: %d messages with their payload, expected %d", all, n)
	}
	return nil
}

// CheckWorked returns an error unless all n messages are done: the stored offset is past them, or
// the queue is empty.
func (w *Watermill) CheckWorked(ctx context.Context, n int) error {
	if w.settings.Queue {
		return w.CheckPublished(ctx, 0)
	}
	var left int
	err := w.pool.QueryRow(ctx, `SELECT count(*) FROM watermill_bench m, watermill_offsets_bench o
		WHERE o.consumer_group = $1 AND (m.transaction_id, m."offset") > (o.last_processed_transaction_id, o.offset_acked)`, group).Scan(&left)
	if err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("watermill: %d messages are left", left)
	}
	return w.CheckPublished(ctx, n)
}
