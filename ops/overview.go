package ops

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

// Overview is an inbox at a glance.
type Overview struct {
	// Inbox is its name.
	Inbox string
	// At is when it was looked at.
	At time.Time
	// Handlers are all that workers list, operators have paused, or statuses
	// are open for, by handler key.
	Handlers []HandlerOverview
	Rejected Count
	Gaps     Count
	// WorkersAlive counts workers that are neither stopped nor released and whose
	// last heartbeat is younger than AliveFor.
	WorkersAlive int
	// EndedSince is from when on HandlerOverview.Ended counts: about an hour ago,
	// or when this process started. Zero without a Live, or while it does not run.
	EndedSince time.Time `json:",omitzero"`
}

// HandlerOverview is one handler key at a glance. Counts go up to LookLimit.
type HandlerOverview struct {
	HandlerKey string
	Paused     bool
	// Registered: a living worker lists the key.
	Registered bool
	// Pending counts the pending statuses, those due and those waiting in lanes
	// among them.
	Pending Count
	// Due counts those that could run now, those waiting in lanes not among them.
	Due Count
	// OldestDueAge is how long the one due longest has been; 0 if none is.
	OldestDueAge time.Duration
	// Waiting counts those that wait in a lane behind another.
	Waiting    Count
	Processing Count
	Poisoned   Count
	// Ended counts attempts of this process alone, see Overview.EndedSince: what
	// has completed is in no index by time, and an index would cost every
	// completion. Add up what each process's own Overview says.
	Ended Ended `json:",omitzero"`
}

// Overview looks at everything at once, in bounded counts.
func (o *Ops) Overview(ctx context.Context) (Overview, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	out := Overview{At: o.clock.Now()}
	fail := func(err error) (Overview, error) { return Overview{}, fmt.Errorf("overview: %w", err) }
	handlers, workers, err := o.handlers(ctx)
	if err != nil {
		return fail(err)
	}
	for _, w := range workers {
		if w.Alive {
			out.WorkersAlive++
		}
	}
	names, err := look(ctx, o, inboxName, value[string])
	if err != nil {
		return fail(err)
	}
	if len(names) == 1 {
		out.Inbox = names[0]
	}
	var ended map[string]Ended
	if o.live != nil {
		out.EndedSince, ended = o.live.Ended()
	}
	for _, h := range handlers {
		one, err := o.overviewOf(ctx, h, out.At)
		if err != nil {
			return fail(fmt.Errorf("handler %q: %w", h.HandlerKey, err))
		}
		one.Ended = ended[h.HandlerKey]
		out.Handlers = append(out.Handlers, one)
	}
	if out.Rejected, err = o.capped(ctx, countRejected, LookLimit); err != nil {
		return fail(err)
	}
	if out.Gaps, err = o.capped(ctx, countGaps, LookLimit); err != nil {
		return fail(err)
	}
	return out, nil
}

// By meta's primary key.
const inboxName = `SELECT "value" FROM {meta} WHERE "key" = 'name'`

// By the due index, oldest due first: what runs was due before what is left, so
// both are among the first.
const countOpen = `
SELECT count(*),
	COALESCE(sum(CASE WHEN s.processing_started_at IS NOT NULL THEN 1 ELSE 0 END), 0),
	COALESCE(sum(CASE WHEN s.processing_started_at IS NULL AND s.due <= $2 THEN 1 ELSE 0 END), 0),
	min(CASE WHEN s.processing_started_at IS NULL THEN s.due END)
FROM (
	SELECT processing_started_at, ` + due + ` AS due FROM {statuses}
	WHERE handler_key = $1 AND ` + isOpen + ` ORDER BY ` + due + `, id LIMIT $3
) s`

// By the indexes on poisoned and on waiting rows, on rejected_at, and the gaps'
// primary key.
const (
	countPoisoned = `SELECT count(*) FROM (SELECT id FROM {statuses} WHERE handler_key = $2 AND is_poisoned AND completed_at IS NULL ORDER BY id LIMIT $1) s`
	countWaiting  = `SELECT count(*) FROM (SELECT id FROM {statuses} WHERE handler_key = $2 AND is_waiting ORDER BY id LIMIT $1) s`
	countRejected = `SELECT count(*) FROM (SELECT id FROM {rejected} ORDER BY rejected_at LIMIT $1) r`
	countGaps     = `SELECT count(*) FROM (SELECT id FROM {gaps} ORDER BY id LIMIT $1) g`
)

type openCounts struct {
	open, processing, due int64
	oldest                store.Stamp
}

func (o *Ops) overviewOf(ctx context.Context, h Handler, now time.Time) (HandlerOverview, error) {
	out := HandlerOverview{HandlerKey: h.HandlerKey, Paused: h.Paused, Registered: h.Registered}
	counts, err := look(ctx, o, countOpen, func(rows *sql.Rows, c *openCounts) error {
		return rows.Scan(&c.open, &c.processing, &c.due, &c.oldest)
	}, h.HandlerKey, o.stamp(now), LookLimit+1)
	if err != nil {
		return out, err
	}
	c := counts[0]
	capped := c.open > LookLimit
	if out.Waiting, err = o.capped(ctx, countWaiting, LookLimit, h.HandlerKey); err != nil {
		return out, err
	}
	if out.Poisoned, err = o.capped(ctx, countPoisoned, LookLimit, h.HandlerKey); err != nil {
		return out, err
	}
	out.Processing, out.Due = Count{min(c.processing, LookLimit), capped}, Count{min(c.due, LookLimit), capped}
	out.Pending = Count{min(c.open, LookLimit) - out.Processing.N + out.Waiting.N, capped || out.Waiting.Capped}
	if c.due > 0 {
		out.OldestDueAge = now.Sub(c.oldest.Time)
	}
	return out, nil
}

// capped counts up to most; the statement's first parameter is its limit.
func (o *Ops) capped(ctx context.Context, statement string, most int64, args ...any) (Count, error) {
	counts, err := look(ctx, o, statement, value[int64], append([]any{most + 1}, args...)...)
	if err != nil {
		return Count{}, err
	}
	return Count{N: min(counts[0], most), Capped: counts[0] > most}, nil
}
