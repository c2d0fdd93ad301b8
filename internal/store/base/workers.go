package base

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/gorm-inbox/inbox/internal/store"
)

func (c Common) WorkerLives(ctx context.Context, workerID string) (bool, error) {
	found, err := store.Query(ctx, c.Pool(ctx), c.Text(c.sql.WorkerLives), store.Value[string], workerID)
	return len(found) == 1, Doing("read worker", err)
}

func (c Common) DeleteWorkers(ctx context.Context, workerIDs []string) (int64, error) {
	deleted, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.DeleteWorkers), listArgument(c, workerIDs))
	return deleted, Doing("delete workers", err)
}

// HandlerKeysJSON encodes a worker's handler keys and their namespaces as an object.
func HandlerKeysJSON(w store.Worker) string {
	namespaces := map[string]string{}
	for _, key := range w.HandlerKeys {
		namespaces[key] = w.Namespaces[key]
	}
	return inJSON(namespaces)
}

// HealthJSON returns a worker's health. It is never empty.
func HealthJSON(w store.Worker) string { return cmp.Or(w.Health, "[]") }

// ConsumersJSON returns the state of a worker's consumers. It is never empty.
func ConsumersJSON(w store.Worker) string { return cmp.Or(w.Consumers, "[]") }

// ParseHandlerKeys decodes the result of HandlerKeysJSON. The keys are sorted. A JSON array has keys without
// namespaces. Any other text has no keys and is no error: one worker's row must stop neither the recovery of the
// others' claims nor the samples.
func ParseHandlerKeys(text string, w *store.WorkerState) {
	var namespaces map[string]string
	var keys []string
	if json.Unmarshal([]byte(text), &namespaces) == nil {
		keys = slices.Collect(maps.Keys(namespaces))
	} else {
		namespaces = nil // after an error it holds a part of the list
		if json.Unmarshal([]byte(text), &keys) != nil {
			keys = nil
		}
	}
	slices.Sort(keys)
	w.Namespaces, w.HandlerKeys = namespaces, append([]string{}, keys...)
}
