package ops

import (
	"context"
	"database/sql"
	"errors"
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
	// Reasons are what living workers say keeps them from being healthy, each once,
	// the unhealthy ones first: halted partitions and open circuit breakers, too. They
	// are as old as the workers' last heartbeats.
	Reasons []HealthReason
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
	// Obstacle is as in Handler.
	Obstacle string
	// Pending counts the pending statuses, those due and those waiting in lanes
	// among them.
	Pending Count
	// Due counts those that could run now, those waiting in lanes not among them. Of
	// a handler with lanes the first 1,000 are looked at. Without a Live it is not
	// known whether what is poisoned is skipped: rows behind it count as waiting.
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
	out.Reasons = reasonsOf(workers)
	names, err := readRows(ctx, o, inboxName, store.Value[string])
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
	min(CASE WHEN s.processing_started_at IS NULL THEN s.due END),
	COALESCE(max(CASE WHEN s.processing_started_at IS NULL AND s.due <= $2 AND s.lane_key IS NOT NULL THEN 1 ELSE 0 END), 0)
FROM (
	SELECT processing_started_at, lane_key, ` + due + ` AS due FROM {statuses}
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
	lanes                 int64 // 1 if any of those due is in a lane
}

func (o *Ops) overviewOf(ctx context.Context, h Handler, now time.Time) (HandlerOverview, error) {
	out := HandlerOverview{HandlerKey: h.HandlerKey, Paused: h.Paused, Registered: h.Registered, Obstacle: h.Obstacle}
	counts, err := readRows(ctx, o, countOpen, func(rows *sql.Rows, c *openCounts) error {
		return rows.Scan(&c.open, &c.processing, &c.due, &c.oldest, &c.lanes)
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
	if c.due == 0 {
		return out, nil
	}
	out.OldestDueAge = now.Sub(c.oldest.Time)
	if c.lanes == 0 {
		return out, nil
	}
	rule, ordered, err := o.laneRule(h.HandlerKey)
	if err != nil || !ordered {
		return out, err
	}
	return o.judgeLanes(ctx, out, c.due, rule, now)
}

// lanesMost is how many rows the overview looks at for whether they are first in
// their lane: each costs a look into it.
const lanesMost = 1000

// laneRule is how the lanes of a handler key run. Without the application nobody
// knows that: then each goes by its own name, and waits behind what is poisoned,
// which is the default.
func (o *Ops) laneRule(handlerKey string) (rule store.LaneRule, ordered bool, err error) {
	if o.live == nil {
		return rule, true, nil
	}
	keys, err := o.live.HandlerKeys(handlerKey)
	if errors.Is(err, ErrNotFound) { // another process's
		return rule, true, nil
	}
	if err != nil {
		return rule, false, err
	}
	for _, key := range keys {
		rule.Handlers = append(rule.Handlers, store.LaneHandler(key))
	}
	ordered, rule.SkipPoisoned = o.live.Ordered(handlerKey)
	return rule, ordered, nil
}

// judgeLanes takes those from what is due that are behind others of their lane,
// marked as waiting or not: no claim takes them.
func (o *Ops) judgeLanes(
	ctx context.Context, out HandlerOverview, due int64, rule store.LaneRule, now time.Time,
) (HandlerOverview, error) {
	release, err := o.connect(ctx)
	if err != nil {
		return out, err
	}
	defer release()
	ctx, cancel := o.within(ctx)
	defer cancel()
	backlogs, err := o.store.Backlog(ctx, []store.KeyLimit{{HandlerKey: out.HandlerKey, Limit: lanesMost, Lanes: &rule}},
		now)
	if err != nil || len(backlogs) != 1 {
		return out, err
	}
	b := backlogs[0]
	behind := max(0, int64(b.Waiting)-min(out.Waiting.N, lanesMost))
	unjudged := due > int64(b.Due)+behind
	out.Due = Count{int64(b.Due), out.Due.Capped || unjudged}
	out.Waiting = Count{min(out.Waiting.N+behind, LookLimit), out.Waiting.Capped || unjudged}
	if out.OldestDueAge = 0; b.Due > 0 {
		out.OldestDueAge = now.Sub(b.OldestDue)
	}
	return out, nil
}

// capped counts up to most; the statement's first parameter is its limit.
func (o *Ops) capped(ctx context.Context, statement string, most int64, args ...any) (Count, error) {
	counts, err := readRows(ctx, o, statement, store.Value[int64], append([]any{most + 1}, args...)...)
	if err != nil {
		return Count{}, err
	}
	return Count{N: min(counts[0], most), Capped: counts[0] > most}, nil
}
