package base

import (
	"bytes"
	"context"
	"database/sql"
	"slices"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// judge compares the stored messages with the batch's. It returns the missing statuses and the messages to reject, and
// marks conflicts in results.
func judge(ctx context.Context, pool gorm.ConnPool, dialect accepting, found []Known, batch store.AcceptBatch,
	index map[Identity]int, statuses [][]StatusRow, results []store.Accepted,
) (missing []StatusRow, conflicts []models.RejectedMessage, err error) {
	var numbers []int64
	var keys []string
	var same []Known
	for _, stored := range found {
		i := index[stored.Identity]
		setNumber(statuses[i], stored.Number)
		for j := range statuses[i] { // the repeated message may have another size
			statuses[i][j].MessageBytes = stored.MessageBytes
		}
		message, result := batch.Messages[i], &results[i]
		alike := stored.MessageType == message.Type && stored.Source == message.Source
		result.ContentDiffers = alike && stored.ContentDiffers
		if alike && !(stored.ContentDiffers && message.RejectDiffering) {
			numbers, same = append(numbers, stored.Number), append(same, stored)
			for _, handler := range message.Handlers {
				keys = append(append(keys, handler.HandlerKey), handler.LegacyKeys...)
			}
			continue
		}
		result.Conflict, result.StoredType, result.StoredSource = true, stored.MessageType, stored.Source
		if message.Rejection != nil {
			conflicts = append(conflicts, conflict(message.Rejection(), stored, alike))
		}
	}
	if len(numbers) == 0 {
		return nil, conflicts, nil
	}
	keys = Distinct(keys)
	lacking := func(has map[HandledBy]bool) (lack []StatusRow) {
		for _, stored := range same {
			i := index[stored.Identity]
			for j, handler := range batch.Messages[i].Handlers {
				if !hasRow(handler, has, stored.Number) && !cleaned(handler, stored) {
					lack = append(lack, statuses[i][j])
				}
			}
		}
		return lack
	}
	rows, err := dialect.HandlerKeys(ctx, pool, numbers, keys)
	if err != nil || len(lacking(underKeys(rows, nil))) == 0 {
		return nil, conflicts, err
	}
	// Another program may have renamed these handlers. It has declared that before its first row under a new key, and
	// adds no row to these messages while they are locked. So this statement knows the key of each such row.
	legacy, err := dialect.LegacyKeys(ctx, pool)
	if err != nil {
		return nil, nil, err
	}
	if all := SameHandler(legacy, keys); len(all) > len(keys) {
		if rows, err = dialect.HandlerKeys(ctx, pool, numbers, all); err != nil {
			return nil, nil, err
		}
	}
	return lacking(underKeys(rows, legacy)), conflicts, nil
}

// underKeys returns under which keys messages have a row: its own key and that key's legacy keys.
func underKeys(rows []HandledBy, legacy map[string][]string) map[HandledBy]bool {
	has := make(map[HandledBy]bool, len(rows))
	for _, row := range rows {
		has[row] = true
		for _, key := range legacy[row.handlerKey] {
			has[HandledBy{row.number, key}] = true
		}
	}
	return has
}

// HandledBy identifies a status by its message's number and its handler key.
type HandledBy struct {
	number     int64
	handlerKey string
}

func (c Common) HandlerKeys(
	ctx context.Context, pool gorm.ConnPool, numbers []int64, keys []string,
) ([]HandledBy, error) {
	return inParts(c, numbers, func(part any) ([]HandledBy, error) {
		return store.Query(ctx, pool, c.Text(c.sql.AcceptKeys), func(rows *sql.Rows, h *HandledBy) error {
			return rows.Scan(&h.number, &h.handlerKey)
		}, part, listArgument(c, keys))
	})
}

// hasRow reports whether the handler has a row under its own key or one of its legacy keys.
func hasRow(n store.NewStatus, has map[HandledBy]bool, number int64) bool {
	if has[HandledBy{number, n.HandlerKey}] {
		return true
	}
	return slices.ContainsFunc(n.LegacyKeys, func(key string) bool { return has[HandledBy{number, key}] })
}

// cleaned reports whether the message is older than the handler's retention. Its row is then missing because it was
// cleaned up.
func cleaned(n store.NewStatus, stored Known) bool {
	return n.Retention > 0 && stored.ReceivedAt.Before(stored.Now.Add(-n.Retention))
}

// SealedTerm is what ContentDiffers needs beside the content of messages m: the properties if the content may be
// sealed. Few others have this text, and then the parsed properties decide.
const SealedTerm = `CASE WHEN m.serialized_properties LIKE '%sealed_:%' THEN m.serialized_properties END`

// ContentDiffers reports whether a message's plain content is another one than that of the stored message (contract
// 4.3). sealed has what SealedTerm returned. The result is differs, the comparison with what is stored, unless that is
// sealed.
func ContentDiffers(m *store.NewMessage, differs bool, sealed string) bool {
	if sealed != "" {
		if _, seal, err := properties.ParseSealed(sealed); err == nil && seal.Key != "" {
			return !bytes.Equal(seal.SHA256, m.ContentSHA256())
		}
	}
	return differs
}
