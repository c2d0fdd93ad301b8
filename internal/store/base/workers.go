package base

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/gorm-inbox/inbox/internal/store"
)

// HandlerKeysJSON encodes a worker's handler keys. It never returns null.
func HandlerKeysJSON(w store.Worker) (string, error) {
	keys, err := json.Marshal(append([]string{}, w.HandlerKeys...))
	if err != nil {
		return "", fmt.Errorf("heartbeat: handler keys: %w", err)
	}
	return string(keys), nil
}

// HealthJSON returns a worker's health. It is never empty.
func HealthJSON(w store.Worker) string { return cmp.Or(w.Health, "[]") }

// ConsumersJSON returns the state of a worker's consumers. It is never empty.
func ConsumersJSON(w store.Worker) string { return cmp.Or(w.Consumers, "[]") }

// ParseHandlerKeys decodes what HandlerKeysJSON has encoded.
func ParseHandlerKeys(text string, w *store.WorkerState) error {
	if err := json.Unmarshal([]byte(text), &w.HandlerKeys); err != nil {
		return fmt.Errorf("handler keys of worker %s: %w", w.ID, err)
	}
	return nil
}
