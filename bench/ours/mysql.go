package ours

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/handler"
)

// IsMySQL reports whether a DSN is that of a MySQL or MariaDB server.
func IsMySQL(dsn string) bool { return strings.Contains(dsn, "@tcp(") }

// Dialector returns a dialector for a DSN of either server.
func Dialector(dsn string) gorm.Dialector {
	if IsMySQL(dsn) {
		return mysql.Open(dsn)
	}
	return postgres.Open(dsn)
}

// InsertPlain stores messages with one status each, by plain multi-row INSERTs into the inbox's two tables. Each
// transaction has a batch of both. It shows the limit of what accepting could reach on MySQL, which has no COPY: there
// is no deduplication, and the numbers are taken before.
func (ib *Inbox) InsertPlain(ctx context.Context, messages []handler.RawMessage, batch, connections int) error {
	const (
		ofMessage = "(?, ?, ?, 'publish', ?, ?, ?, ?, '{}', UTC_TIMESTAMP(6))"
		ofStatus  = "(?, ?, ?, ?, 'bench-handler-1', UTC_TIMESTAMP(6))"
	)
	return trial.InBatches(ctx, len(messages), batch, connections, func(ctx context.Context, from, to int) error {
		var stored, statuses []any
		for i, m := range messages[from:to] {
			number := from + i + 1
			stored = append(stored, m.ID, m.Channel, number, m.Type, m.Source, m.Content, m.ContentType)
			id := uuid.Must(uuid.NewV7()).String()
			statuses = append(statuses, id, number, len(m.Content)+len("{}"), m.ID)
		}
		rows := func(of string) string { return of + strings.Repeat(", "+of, to-from-1) }
		return ib.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			err := tx.Exec(`INSERT INTO inbox_messages (id, namespace, number, transport_name, type, source, content,
				content_type, serialized_properties, received_at) VALUES `+rows(ofMessage), stored...).Error
			if err != nil {
				return fmt.Errorf("messages: %w", err)
			}
			return tx.Exec(`INSERT INTO inbox_handler_statuses (id, message_number, message_bytes, message_id,
				handler_key, created_at) VALUES `+rows(ofStatus), statuses...).Error
		})
	})
}
