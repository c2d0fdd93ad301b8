package ops

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
)

// Delete deletes a message and all of its statuses in any state, or returns ErrProcessing while one
// is being processed. Nothing is remembered: a redelivery is a new message. confirmation must
// repeat the message ID, otherwise it returns ErrBadInput. To end a poisoned status, use Discard.
func (o *Ops) Delete(ctx context.Context, actor Actor, ref MessageRef, confirmation string) error {
	err := ref.check()
	if err == nil && confirmation != ref.ID {
		err = badInput("confirmation", "it is not the message ID")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", ActionDelete, err)
	}
	var gone []changed
	err = o.audited(ctx, actor, ActionDelete, "message "+ref.ID, func(ctx context.Context, tx *gorm.DB) (any, error) {
		pool := tx.Statement.ConnPool
		// Lock the message first, as accepts and cleanup do. An accept that adds statuses waits,
		// and then finds no message.
		number, err := o.numberOf(ctx, pool, ref)
		if err != nil {
			return nil, err
		}
		messages, err := query(ctx, o, pool, lockMessage, scanMessage, number)
		if err != nil {
			return nil, err
		}
		if len(messages) == 0 {
			return nil, ErrNotFound
		}
		// This waits for a claim that is being committed, and then sees it.
		if gone, err = query(ctx, o, pool, deleteStatuses, scanChanged, number); err != nil {
			return nil, err
		}
		left, err := query(ctx, o, pool, statusesLeft, store.Value[int64], number)
		if err == nil && left[0] > 0 {
			err = fmt.Errorf("%w by %d of its handlers: wait, or stop the worker", ErrProcessing, left[0])
		}
		if err == nil {
			_, err = o.exec(ctx, pool, deleteMessage, number)
		}
		detail := map[string]any{"namespace": messages[0].namespace, "type": messages[0].typ,
			"received_at": messages[0].receivedAt, "handlers": handlerKeys(gone)}
		return detail, err
	})
	if err != nil {
		return err
	}
	o.announce(ctx, false, gone)
	return nil
}

// message is a message without its content.
type message struct {
	id, namespace, typ string
	receivedAt         time.Time
}

func scanMessage(rows *sql.Rows, m *message) error {
	var received store.Stamp
	err := rows.Scan(&m.id, &m.namespace, &m.typ, &received)
	m.receivedAt = received.Time
	return err
}

// These use the messages' number, and the unique index on (message_number, handler_key) of
// statuses.
const (
	lockMessage = `
SELECT id, namespace, type, received_at FROM {messages} WHERE number = $1 {for update}`

	deleteStatuses = `
DELETE FROM {statuses} AS s WHERE s.message_number = $1 AND s.processing_started_at IS NULL RETURNING {changed}`

	statusesLeft = `SELECT count(*) FROM {statuses} WHERE message_number = $1`

	deleteMessage = `DELETE FROM {messages} WHERE number = $1`
)

func handlerKeys(rows []changed) []string {
	keys := make([]string, len(rows))
	for i, c := range rows {
		keys[i] = c.handlerKey
	}
	return distinct(keys)
}
