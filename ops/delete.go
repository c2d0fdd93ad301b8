package ops

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
)

// Delete deletes a message and all of its statuses, whatever their state:
// ErrProcessing while any is being processed. Nothing remembers it: a redelivery
// is a new message. confirmation repeats the message ID, else it is ErrBadInput.
// To end a poisoned status, Discard it instead.
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
		// Locked first, as accepts and cleanup do: an accept that adds statuses
		// waits, and then finds no message.
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
		// A claim of one of them that is being committed is waited for, and
		// then seen.
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

// Messages by their number, and statuses by the unique
// index on (message_number, handler_key).
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
