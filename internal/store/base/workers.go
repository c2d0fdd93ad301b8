package base

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/gorm-inbox/inbox/internal/store"
)

// HandlerKeysJSON encodes a worker's handler keys and their namespaces as an object.
func HandlerKeysJSON(w store.Worker) (string, error) {
	namespaces := map[string]string{}
	for _, key := range w.HandlerKeys {
		namespaces[key] = w.Namespaces[key]
	}
	keys, err := json.Marshal(namespaces)
	if err != nil {
		return "", fmt.Errorf("heartbeat: handler keys: %w", err)
	}
	return string(keys), nil
}

// HealthJSON returns a worker's health. It is never empty.
func HealthJSON(w store.Worker) string { return cmp.Or(w.Health, "[]") }

// ConsumersJSON returns the state of a worker's consumers. It is never empty.
func ConsumersJSON(w store.Worker) string { return cmp.Or(w.Consumers, "[]") }

// ParseHandlerKeys decodes what HandlerKeysJSON has encoded. The keys are sorted.
func ParseHandlerKeys(text string, w *store.WorkerState) error {
	if err := json.Unmarshal([]byte(text), &w.Namespaces); err != nil {
		return fmt.Errorf("handler keys of worker %s: %w", w.ID, err)
	}
	w.HandlerKeys = slices.AppendSeq([]string{}, maps.Keys(w.Namespaces))
	slices.Sort(w.HandlerKeys)
	return nil
}
