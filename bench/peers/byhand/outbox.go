package byhand

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/bench/ours"
)

// Outbox is the outbox of articles: a table, and one relay that reads the oldest rows, produces and deletes them.
type Outbox struct {
	pool   *pgxpool.Pool
	writer *kafka.Writer
}

// OpenOutbox creates the table.
func OpenOutbox(ctx context.Context, dsn string, brokers []string, topic string) (*Outbox, error) {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, `
		CREATE TABLE hand_outbox (id bigserial PRIMARY KEY, key bytea, type text NOT NULL, content bytea NOT NULL)`)
	if err != nil {
		pool.Close()
		return nil, err
	}
	writer := &kafka.Writer{Addr: kafka.TCP(brokers...), Topic: topic, Balancer: &kafka.Murmur2Balancer{},
		RequiredAcks: kafka.RequireAll, BatchSize: 1000, BatchTimeout: time.Millisecond,
		Transport: &kafka.Transport{}} // the default one knows older topics alone
	return &Outbox{pool: pool, writer: writer}, nil
}

// Fill stores n messages with so many keys.
func (o *Outbox) Fill(ctx context.Context, n, keys int) error {
	rows := make([][]any, n)
	for i := range rows {
		rows[i] = []any{[]byte("key-" + strconv.Itoa(i%keys)), ours.Type, ours.Payload}
	}
	_, err := o.pool.CopyFrom(ctx, pgx.Identifier{"hand_outbox"}, []string{"key", "type", "content"}, pgx.CopyFromRows(rows))
	return err
}

// Relay publishes until the table is empty. A crash repeats a batch.
func (o *Outbox) Relay(ctx context.Context, batch int) error {
	for {
		n, err := o.relayBatch(ctx, batch)
		if err != nil || n == 0 {
			return err
		}
	}
}

func (o *Outbox) relayBatch(ctx context.Context, batch int) (n int, err error) {
	err = pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id, key, type, content FROM hand_outbox ORDER BY id LIMIT $1 FOR UPDATE`, batch)
		if err != nil {
			return err
		}
		var done []int64
		var records []kafka.Message
		var id int64
		var key, content []byte
		var messageType string
		_, err = pgx.ForEachRow(rows, []any{&id, &key, &messageType, &content}, func() error {
			done = append(done, id)
			records = append(records, kafka.Message{Key: append([]byte{}, key...), Value: append([]byte{}, content...),
				Headers: []kafka.Header{{Key: "MessageId", Value: []byte(strconv.FormatInt(id, 10))},
					{Key: "MessageType", Value: []byte(messageType)}}})
			return nil
		})
		if err != nil || len(done) == 0 {
			return err
		}
		n = len(done)
		if err := o.writer.WriteMessages(ctx, records...); err != nil {
			return fmt.Errorf("produce: %w", err)
		}
		_, err = tx.Exec(ctx, `DELETE FROM hand_outbox WHERE id = ANY($1)`, done)
		return err
	})
	return n, err
}

// Close closes the pool and the connections to the broker.
func (o *Outbox) Close() {
	_ = o.writer.Close()
	o.pool.Close()
}
