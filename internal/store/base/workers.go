package base

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/gorm-inbox/inbox/internal/store"
)

// HandlerKeysJSON never writes null for a worker without handlers.
func HandlerKeysJSON(w store.Worker) (string, error) {
	keys, err := json.Marshal(append([]string{}, w.HandlerKeys...))
	if err != nil {
		return "", fmt.Errorf("heartbeat: handler keys: %w", err)
	}
	return string(keys), nil
}

// HealthJSON never writes an empty text for a worker without health.
func HealthJSON(w store.Worker) string { return cmp.Or(w.Health, "[]") }

// ParseHandlerKeys reads what HandlerKeysJSON has written.
func ParseHandlerKeys(text string, w *store.WorkerState) error {
	if err := json.Unmarshal([]byte(text), &w.HandlerKeys); err != nil {
		return fmt.Errorf("handler keys of worker %s: %w", w.ID, err)
	}
	return nil
}
