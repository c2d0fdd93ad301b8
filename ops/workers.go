package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/redact"
)

// aliveFor is how young a worker's last heartbeat must be for it to count as alive here: the default of WorkerTimeout.
// Recovery uses each inbox's option.
const aliveFor = 30 * time.Second

// Worker is one process of the inbox.
type Worker struct {
	ID          string
	Host        string
	PID         int
	HandlerKeys []string
	StartedAt   time.Time
	// SilentFor is the time since its last heartbeat, by the server's clock if there is one.
	SilentFor time.Duration
	Stopped   bool
	// Released means that the worker was found dead and its claims were released.
	Released bool
	// Alive means neither stopped nor released, and silent for less than 30 s.
	Alive bool
	// Reasons are why the process was not healthy at its last heartbeat, the worst first; empty if it was healthy.
	Reasons []HealthReason
}

// HealthState is the health of a process: inbox.HealthHealthy, HealthDegraded or HealthUnhealthy.
type HealthState string

// HealthReason is one reason why a process is not healthy. Inbox.Health returns the reasons of its process, and this
// package the reasons that workers have stored (contract 11.5).
type HealthReason struct {
	// Code is for programs: no_progress, oldest_due_age, poison_rate, halted_partition, consumer, database,
	// stuck_handler, long_running, open_circuit, outage, failing_handler, clock_skew, barred_role, unknown_handler,
	// closed_pool or cleanup. Each is explained in docs/observability.md.
	Code string `json:"code"`
	// State is what the process is for this reason alone, degraded or unhealthy.
	State HealthState `json:"state"`
	// Channel or HandlerKey is what it concerns; empty if it concerns everything.
	Channel    string `json:"channel,omitempty"`
	HandlerKey string `json:"handler_key,omitempty"`
	// MessageIDs name the messages whose calls do not return, the longest first, ten at most of each worker; nil except
	// for long_running.
	MessageIDs []string `json:"message_ids,omitempty"`
	// Since is since when an open_circuit's breaker is open, and ProbeAt when it lets the next probe through, by the clock
	// of the worker's machine. Both are zero for other codes, ProbeAt also while a probe is running.
	Since   time.Time `json:"since,omitzero"`
	ProbeAt time.Time `json:"probe_at,omitzero"`
	// Detail is a text for people. A Redact hook gets it as an error.
	Detail string `json:"detail"`
	// Workers is how many living workers report it: 1 for a Worker's own, 0 in inbox.Health.
	Workers int `json:"-"`
}

// String returns the reason as one line: what it concerns, the detail, and how many workers report it if several do.
func (r HealthReason) String() string {
	text := r.Detail
	if r.HandlerKey != "" {
		text = fmt.Sprintf("handler %q: %s", r.HandlerKey, text)
	}
	if r.Channel != "" {
		text = fmt.Sprintf("channel %q: %s", r.Channel, text)
	}
	if r.Workers > 1 {
		text += fmt.Sprintf(" (%d workers)", r.Workers)
	}
	return text
}

// Unhealthy reports whether the reason makes its process unhealthy and not only degraded.
func (r HealthReason) Unhealthy() bool { return r.State == "unhealthy" }

// Handler is a handler key that is known in some way.
type Handler struct {
	HandlerKey string
	// Registered means that a living worker lists it, as a key or as a legacy key.
	Registered bool
	Workers    int // living ones that list it
	Paused     bool
	// StoredOnly means that statuses are open under it and no living worker lists it.
	StoredOnly bool
	// Obstacle describes in a few words why its due statuses do not run: a pause, no worker, an open circuit breaker,
	// calls that do not return; of an Inline or Direct channel's handler also that it fails while a partition waits. It
	// is empty if nothing is known.
	Obstacle string
}

// obstacle returns the text of Handler.Obstacle.
func (h Handler) obstacle(reasons []HealthReason) string {
	switch {
	case h.Paused && !h.Registered:
		return "paused; no living worker lists it"
	case h.Paused:
		return "paused"
	case !h.Registered:
		return "no living worker lists it"
	}
	for _, r := range reasons {
		note := health.Note(r.Code)
		switch {
		case note == "" || r.HandlerKey != h.HandlerKey:
			continue
		case r.Workers < h.Workers:
			return fmt.Sprintf("%s in %d of %d workers", note, r.Workers, h.Workers)
		}
		return note
	}
	return ""
}

// Lease is the row of a lock.
type Lease struct {
	Name    string
	OwnerID string
	// ExpiresIn is negative if the lease has expired, by the server's clock if there is one.
	ExpiresIn time.Duration
}

// Workers lists all workers' rows, at most 1,000, the latest heartbeat first. Programs that only call ProcessPending
// have no worker.
func (o processes) Workers(ctx context.Context) ([]Worker, error) {
	var stored []store.WorkerState
	err := o.connected(ctx, func(ctx context.Context) (err error) {
		stored, err = o.store.Workers(ctx, o.opts.Clock.Now())
		return err
	})
	if err != nil {
		return nil, err
	}
	stored = slices.DeleteFunc(stored, func(w store.WorkerState) bool { return w.Drains })
	workers := make([]Worker, len(stored))
	for i, w := range stored {
		workers[i] = Worker{ID: w.ID, Host: w.Host, PID: w.PID, HandlerKeys: w.HandlerKeys, StartedAt: w.StartedAt,
			SilentFor: w.SilentFor, Stopped: w.Stopped, Released: w.Released,
			Alive: !w.Stopped && !w.Released && w.SilentFor < aliveFor}
		if workers[i].Reasons, err = o.reasons(w.Health); err != nil {
			return nil, fmt.Errorf("health of worker %s: %w", w.ID, err)
		}
	}
	slices.SortStableFunc(workers, func(a, b Worker) int { return cmp.Compare(a.SilentFor, b.SilentFor) })
	return workers[:min(len(workers), maxListed)], nil
}

// reasons decodes the health that a worker has stored.
func (o processes) reasons(stored string) (reasons []HealthReason, err error) {
	if stored == "" { // a row that no worker has written
		return nil, nil
	}
	if err := json.Unmarshal([]byte(stored), &reasons); err != nil {
		return nil, err
	}
	for i := range reasons {
		r := &reasons[i]
		r.Workers = 1
		r.Detail = o.redactor.Error(redact.Value{Channel: r.Channel, HandlerKey: r.HandlerKey}, r.Detail)
	}
	return reasons, nil
}

// reasonsOf joins the reasons of living workers: each reason once, the worst first. Workers describe a handler's reason
// with their own times and counts, so the first one stands for all. Any other reason is the same only if its detail is
// the same.
func reasonsOf(workers []Worker) []HealthReason {
	var all []HealthReason
	for _, w := range workers {
		if !w.Alive {
			continue
		}
		for _, r := range w.Reasons {
			same := func(other HealthReason) bool {
				return other.Code == r.Code && other.State == r.State && other.Channel == r.Channel &&
					other.HandlerKey == r.HandlerKey && (r.HandlerKey != "" || other.Detail == r.Detail)
			}
			if i := slices.IndexFunc(all, same); i >= 0 {
				all[i].Workers++
				all[i].MessageIDs = slices.Concat(all[i].MessageIDs, r.MessageIDs)
			} else {
				all = append(all, r)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b HealthReason) int {
		// In the order of text, "unhealthy" is more than "degraded".
		return cmp.Or(cmp.Compare(b.State, a.State), cmp.Compare(health.Rank(a.Code), health.Rank(b.Code)))
	})
	return all
}

// maxListed limits lists of tables that have few rows.
const maxListed = 1000

// Handlers lists the handler keys that living workers list, that are paused, or that have open statuses, sorted by key.
func (o processes) Handlers(ctx context.Context) ([]Handler, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	handlers, _, err := o.handlers(ctx)
	return handlers, err
}

func (o processes) handlers(ctx context.Context) ([]Handler, []Worker, error) {
	known, err := o.declared(ctx)
	if err != nil {
		return nil, nil, err
	}
	open, err := o.allOpenKeys(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list handlers with open statuses: %w", err)
	}
	return known.handlers(open), known.workers, nil
}

// declared is what is known of handlers without reading statuses.
type declared struct {
	workers []Worker
	paused  []string
}

func (o processes) declared(ctx context.Context) (known declared, err error) {
	if known.workers, err = o.Workers(ctx); err != nil {
		return known, err
	}
	if known.paused, err = o.store.PausedKeys(ctx, o.pool(ctx), maxListed, false); err != nil {
		return known, fmt.Errorf("list paused handlers: %w", err)
	}
	return known, nil
}

// living returns the IDs of the living workers.
func (known declared) living() []string {
	ids := []string{}
	for _, w := range known.workers {
		if w.Alive {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

// handlers returns the handler keys that are known and those that have open statuses, sorted by key.
func (known declared) handlers(open []string) (handlers []Handler) {
	listing := map[string]int{}
	for _, w := range known.workers {
		if !w.Alive {
			continue
		}
		for _, key := range w.HandlerKeys {
			listing[key]++
		}
	}
	reasons := reasonsOf(known.workers)
	for _, key := range distinct(slices.Concat(slices.Collect(maps.Keys(listing)), known.paused, open)) {
		h := Handler{HandlerKey: key, Registered: listing[key] > 0, Workers: listing[key],
			Paused: slices.Contains(known.paused, key), StoredOnly: listing[key] == 0 && slices.Contains(open, key)}
		h.Obstacle = h.obstacle(reasons)
		handlers = append(handlers, h)
	}
	return handlers
}

// Leases lists the leases of processor, cleanup and publishing copies, at most 1,000, sorted by name.
func (o processes) Leases(ctx context.Context) ([]Lease, error) {
	held, err := o.store.AllLeases(ctx, o.pool(ctx), o.opts.Clock.Now(), maxListed)
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	var leases []Lease
	for _, l := range held {
		leases = append(leases, Lease(l))
	}
	return leases, nil
}
