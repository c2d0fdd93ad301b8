// Package byhand is an inbox as people write it themselves: two plain tables, used in the ways that
// articles and code bases show. It leaves out retries, crash recovery and everything else that is
// not needed to complete a message once. That makes it faster than it could be in production.
package byhand

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

// Message is one received message.
type Message struct {
	ID         string `gorm:"primaryKey"`
	Type       string
	Content    []byte
	ReceivedAt time.Time
}

// TableName implements gorm's Tabler.
func (Message) TableName() string { return "hand_messages" }

// Status is one handler's status of one message.
type Status struct {
	ID                  uuid.UUID `gorm:"primaryKey;type:uuid"`
	MessageID           string
	HandlerKey          string
	ErrorCount          int
	LastError           *string
	CreatedAt           time.Time
	ProcessingStartedAt *time.Time
	NextAttemptAt       *time.Time
	IsPoisoned          bool
	CompletedAt         *time.Time
	Message             *Message
}

// TableName implements gorm's Tabler.
func (Status) TableName() string { return "hand_statuses" }

// tables are the tables with the indexes that any of them needs: the unique key for deduplication,
// and a partial index on pending rows.
var tables = []string{
	`CREATE TABLE hand_messages (
		id varchar(200) PRIMARY KEY, type varchar(255) NOT NULL, content bytea NOT NULL,
		received_at timestamptz NOT NULL)`,
	`CREATE TABLE hand_statuses (
		id uuid PRIMARY KEY, message_id varchar(200) NOT NULL REFERENCES hand_messages (id),
		handler_key varchar(200) NOT NULL, error_count integer NOT NULL DEFAULT 0, last_error varchar(2000),
		created_at timestamptz NOT NULL, processing_started_at timestamptz, next_attempt_at timestamptz,
		is_poisoned boolean NOT NULL DEFAULT false, completed_at timestamptz,
		UNIQUE (message_id, handler_key))`,
	`CREATE INDEX hand_statuses_pending ON hand_statuses (id) WHERE completed_at IS NULL AND NOT is_poisoned`,
}

// mysqlTables are the same on MySQL. It has no partial index: pending rows are found by a whole one, as in articles.
var mysqlTables = []string{
	`CREATE TABLE hand_messages (
		id varchar(200) PRIMARY KEY, type varchar(255) NOT NULL, content longblob NOT NULL,
		received_at datetime(6) NOT NULL)`,
	`CREATE TABLE hand_statuses (
		id char(36) PRIMARY KEY, message_id varchar(200) NOT NULL REFERENCES hand_messages (id),
		handler_key varchar(200) NOT NULL, error_count integer NOT NULL DEFAULT 0, last_error varchar(2000),
		created_at datetime(6) NOT NULL, processing_started_at datetime(6), next_attempt_at datetime(6),
		is_poisoned boolean NOT NULL DEFAULT false, completed_at datetime(6),
		UNIQUE (message_id, handler_key),
		KEY hand_statuses_pending (completed_at, is_poisoned, processing_started_at, id))`,
}

// Inbox has the two tables in a database of their own.
type Inbox struct {
	DB   *gorm.DB
	Pool *pgxpool.Pool // nil on MySQL
}

// Open creates the tables. Both pools may have that many connections, and GORM's pool keeps them
// when idle.
func Open(ctx context.Context, dsn string, connections int) (ib *Inbox, err error) {
	ib = &Inbox{}
	if !ours.IsMySQL(dsn) {
		if ib.Pool, err = openPool(ctx, dsn, connections); err != nil {
			return nil, err
		}
	}
	ib.DB, err = gorm.Open(ours.Dialector(dsn), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		ib.Close()
		return nil, err
	}
	std, err := ib.DB.DB()
	if err != nil {
		ib.Close()
		return nil, err
	}
	std.SetMaxOpenConns(connections)
	std.SetMaxIdleConns(connections)
	statements := tables
	if ib.Pool == nil {
		statements = mysqlTables
	}
	for _, statement := range statements {
		if err := ib.DB.WithContext(ctx).Exec(statement).Error; err != nil {
			ib.Close()
			return nil, fmt.Errorf("make the tables: %w", err)
		}
	}
	return ib, nil
}

func openPool(ctx context.Context, dsn string, connections int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(connections)
	return pgxpool.NewWithConfig(ctx, cfg)
}

// Close closes both pools.
func (ib *Inbox) Close() {
	if ib.Pool != nil {
		ib.Pool.Close()
	}
	if ib.DB == nil {
		return
	}
	if std, err := ib.DB.DB(); err == nil {
		_ = std.Close()
	}
}

// Load fills the tables with n messages that are pending for one handler.
func (ib *Inbox) Load(ctx context.Context, n int) error {
	messages, statuses := Rows(n, 1)
	if ib.Pool == nil {
		return ib.AcceptInBatches(ctx, messages, statuses, 1000, 2)
	}
	return trial.InBatches(ctx, n, 1000, 2, func(ctx context.Context, from, to int) error {
		return pgx.BeginFunc(ctx, ib.Pool, func(tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"hand_messages"}, []string{"id", "type", "content", "received_at"},
				pgx.CopyFromSlice(to-from, func(i int) ([]any, error) {
					m := messages[from+i]
					return []any{m.ID, m.Type, m.Content, m.ReceivedAt}, nil
				}))
			if err != nil {
				return err
			}
			_, err = tx.CopyFrom(ctx, pgx.Identifier{"hand_statuses"}, []string{"id", "message_id", "handler_key", "created_at"},
				pgx.CopyFromSlice(to-from, func(i int) ([]any, error) {
					s := statuses[from+i]
					return []any{[16]byte(s.ID), s.MessageID, s.HandlerKey, s.CreatedAt}, nil
				}))
			return err
		})
	})
}

// Rows returns n messages and their handlers' statuses, in the order of the messages.
func Rows(n, handlers int) (messages []Message, statuses []Status) {
	now := time.Now().UTC()
	for _, m := range ours.Messages(n) {
		messages = append(messages, Message{ID: m.ID, Type: m.Type, Content: m.Content, ReceivedAt: now})
		for h := range handlers {
			statuses = append(statuses, Status{ID: uuid.Must(uuid.NewV7()), MessageID: m.ID,
				HandlerKey: fmt.Sprintf("bench-handler-%d", h+1), CreatedAt: now})
		}
	}
	return messages, statuses
}

// CheckStored returns an error unless the tables have these numbers of messages, statuses and
// completed statuses.
func (ib *Inbox) CheckStored(ctx context.Context, messages, statuses, completed int) error {
	var m, s, c int
	err := ib.DB.WithContext(ctx).Raw(`SELECT (SELECT count(*) FROM hand_messages WHERE length(content) = ?), count(*),
		count(completed_at) FROM hand_statuses`, ours.PayloadBytes).Row().Scan(&m, &s, &c)
	if err != nil {
		return err
	}
	if m != messages || s != statuses || c != completed {
		return fmt.Errorf("by hand: messages %d, statuses %d, completed %d; expected %d, %d, %d", m, s, c, messages, statuses,
			completed)
	}
	return nil
}
