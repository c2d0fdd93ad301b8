// Package watermill runs Watermill's SQL Pub/Sub (github.com/ThreeDotsLabs/watermill-sql) as its
// users do. It is a log with an offset for each consumer group, or a queue for one consumer. It has
// no rows per handler, no retries of one message beside others, and no parked messages.
package watermill

import (
	"context"
	stdsql "database/sql"
	"fmt"
	"strings"
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

// mysqlPayloadType is the same on MySQL, which has no BYTEA.
func mysqlPayloadType(string) string { return "BLOB" }

func (w *Watermill) schema() sql.SchemaAdapter {
	s := w.settings
	if w.onMySQL {
		return sql.DefaultMySQLSchema{GeneratePayloadType: mysqlPayloadType, SubscribeBatchSize: s.Batch}
	}
	if s.Queue {
		return sql.PostgreSQLQueueSchema{GeneratePayloadType: payloadType, SubscribeBatchSize: s.Batch}
	}
	return sql.DefaultPostgreSQLSchema{GeneratePayloadType: payloadType, SubscribeBatchSize: s.Batch}
}

// offsets returns the adapter for offsets. For a queue it deletes handled rows, as that adapter's
// own tests do, because rows that are only marked would slow it down.
func (w *Watermill) offsets() sql.OffsetsAdapter {
	if w.onMySQL {
		return sql.DefaultMySQLOffsetsAdapter{}
	}
	if w.settings.Queue {
		return sql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true}
	}
	return sql.DefaultPostgreSQLOffsetsAdapter{}
}

// Watermill is a publisher and a subscriber of one topic.
type Watermill struct {
	settings   Settings
	onMySQL    bool // otherwise on PostgreSQL
	pool       pool
	publisher  *sql.Publisher
	subscriber *sql.Subscriber
	last       int64 // offset of the topic's last message
}

// pool is a pool of either server. Its statements are those of PostgreSQL.
type pool struct {
	sql.Beginner
	scan  func(ctx context.Context, into any, query string, args ...any) error
	close func()
}

func openPool(ctx context.Context, dsn string) (pool, error) {
	if ours.IsMySQL(dsn) {
		db, err := stdsql.Open("mysql", dsn)
		if err != nil {
			return pool{}, err
		}
		inMySQL := strings.NewReplacer("$1", "?", "$2", "?", `"`, "`")
		return pool{sql.BeginnerFromStdSQL(db), func(ctx context.Context, into any, query string, args ...any) error {
			return db.QueryRowContext(ctx, inMySQL.Replace(query), args...).Scan(into)
		}, func() { _ = db.Close() }}, nil
	}
	pgx, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return pool{}, err
	}
	return pool{sql.BeginnerFromPgx(pgx), func(ctx context.Context, into any, query string, args ...any) error {
		return pgx.QueryRow(ctx, query, args...).Scan(into)
	}, pgx.Close}, nil
}

// Open creates the topic's tables.
func Open(ctx context.Context, dsn string, s Settings) (*Watermill, error) {
	pool, err := openPool(ctx, dsn)
	if err != nil {
		return nil, err
	}
	w := &Watermill{settings: s, onMySQL: ours.IsMySQL(dsn), pool: pool}
	if err := w.open(); err != nil {
		pool.close()
		return nil, err
	}
	return w, nil
}

func (w *Watermill) open() (err error) {
	if w.publisher, err = sql.NewPublisher(w.pool, sql.PublisherConfig{SchemaAdapter: w.schema()},
		watermill.NopLogger{}); err != nil {
		return err
	}
	config := sql.SubscriberConfig{SchemaAdapter: w.schema(), OffsetsAdapter: w.offsets()}
	if !w.settings.Queue { // a queue rejects a consumer group
		config.ConsumerGroup = group
	}
	if w.subscriber, err = sql.NewSubscriber(w.pool, config, watermill.NopLogger{}); err != nil {
		return err
	}
	return w.subscriber.SubscribeInitialize(topic)
}

// Close ends the subscriber and closes the pool.
func (w *Watermill) Close() {
	_ = w.subscriber.Close()
	_ = w.publisher.Close()
	w.pool.close()
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
	if w.settings.Queue || w.onMySQL {
		order = `"offset" DESC`
	}
	return w.pool.scan(ctx, &w.last, `SELECT "offset" FROM watermill_bench ORDER BY `+order+` LIMIT 1`)
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
	query := `SELECT EXISTS (SELECT 1 FROM watermill_offsets_bench WHERE offset_acked = $1 AND consumer_group = $2)`
	args := []any{w.last, group}
	if w.settings.Queue {
		query, args = `SELECT NOT EXISTS (SELECT FROM watermill_bench WHERE "offset" = $1)`, []any{w.last}
	}
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		var done bool
		if err := w.pool.scan(ctx, &done, query, args...); err != nil || done {
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
	if err := w.pool.scan(ctx, &all, `SELECT count(*) FROM watermill_bench WHERE length(payload) = $1`,
		ours.PayloadBytes); err != nil {
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
	past := `(m.transaction_id, m."offset") > (o.last_processed_transaction_id, o.offset_acked)`
	if w.onMySQL {
		past = `m."offset" > o.offset_acked`
	}
	if err := w.pool.scan(ctx, &left, `SELECT count(*) FROM watermill_bench m, watermill_offsets_bench o
		WHERE o.consumer_group = $1 AND `+past, group); err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("watermill: %d messages are left", left)
	}
	return w.CheckPublished(ctx, n)
}
