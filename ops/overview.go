package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/store"
)

// Overview summarizes an inbox.
type Overview struct {
	// Inbox is its name.
	Inbox string
	// At is when the overview was taken.
	At time.Time
	// Handlers are all handler keys that workers list, that operators have paused, or that have open statuses, sorted
	// by key.
	Handlers []HandlerOverview
	Rejected Count
	Gaps     Count
	// Unrouted is how many messages no handler took, in all living processes since each made its inbox. It is as old as
	// their last heartbeats.
	Unrouted int64
	// WorkersAlive counts the workers that are neither stopped nor released and whose last heartbeat is younger than 30
	// s.
	WorkersAlive int
	// Reasons are why living workers are not healthy, as they report it, each once, the worst first. They include
	// halted partitions and open circuit breakers, and are as old as the workers' last heartbeats.
	Reasons []HealthReason
	// Incomplete is what could not be counted in time, and where to look for the cause. These counts are Unknown; what
	// the workers report is known all the same. It is empty if everything was counted.
	Incomplete string
	// EndedSince is since when HandlerOverview.Ended counts: about an hour ago, or when this process started. It is
	// zero without a Live, or if the process does not run.
	EndedSince time.Time `json:",omitzero"`
}

// HandlerOverview summarizes one handler key. Counts are capped at 10,000.
type HandlerOverview struct {
	HandlerKey string
	Paused     bool
	// Registered means that a living worker lists the key.
	Registered bool
	// Workers counts the living workers that list the key.
	Workers int
	// StoredOnly means that statuses are open under it and no living worker lists it.
	StoredOnly bool
	// Obstacle is as in Handler.
	Obstacle string
	// Pending counts the pending statuses, including those that are due and those that wait in lanes.
	Pending Count
	// Due counts the statuses that could run now, without those that wait in lanes. For a handler with lanes the first
	// 1,000 are read. Without a Live it is not known whether poisoned rows are skipped, so rows after them count as
	// waiting.
	Due Count
	// OldestDueAge is how long the oldest due status has been due; 0 if none is.
	OldestDueAge time.Duration
	// Waiting counts the statuses that wait for another one of their lane.
	Waiting    Count
	Processing Count
	// Orphaned counts the processing statuses of workers that do not live. They run again once a living worker has
	// reclaimed them (contract 5.9).
	Orphaned Count
	Poisoned Count
	// Parked counts the pending statuses whose lane has a poisoned status before them, and ParkedBy these poisoned ones.
	// The lanes wait until an operator acts. Of more poisoned statuses than 1,000 only the first are read.
	Parked   Count
	ParkedBy Count
	// Ended counts attempts of this process only, see Overview.EndedSince. No index has completed statuses by time,
	// because it would make every completion slower. Add up the Overviews of all processes.
	Ended Ended `json:",omitzero"`
}

// Overview returns the state of the whole inbox in capped counts. If a table is locked or slow, it returns what it
// could read, with the other counts Unknown, within a few statement timeouts. Without the workers' rows it returns an
// error.
func (o *Ops) Overview(ctx context.Context) (Overview, error) {
	caller := ctx
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	var out Overview
	fail := func(err error) (Overview, error) { return Overview{}, fmt.Errorf("overview: %w", err) }
	now, err := o.Now(ctx)
	if err != nil {
		return fail(err)
	}
	out.At = now
	known, err := o.declared(ctx)
	if err != nil {
		return fail(err)
	}
	for _, w := range known.workers {
		if w.Alive {
			out.WorkersAlive++
		}
	}
	out.Reasons = reasonsOf(known.workers)
	consumers, err := o.reportedConsumers(ctx, known.workers)
	if err != nil {
		return fail(err)
	}
	for _, c := range consumers {
		out.Unrouted += c.Unrouted
	}
	if out.Inbox, err = o.store.InboxName(ctx, o.pool(ctx)); err != nil {
		return fail(err)
	}
	missing := missing{caller: caller}
	counted, err := o.openStatuses(ctx, known, now)
	if out.Handlers = counted; err != nil && !missing.late("the open statuses", err) {
		return fail(err)
	}
	if o.opts.Live != nil {
		var ended map[string]Ended
		out.EndedSince, ended = o.opts.Live.Ended()
		for i := range out.Handlers {
			out.Handlers[i].Ended = ended[out.Handlers[i].HandlerKey]
		}
	}
	for _, c := range []struct {
		of    *Count
		what  string
		count func(ctx context.Context, pool gorm.ConnPool, limit int64) (int64, error)
	}{{&out.Rejected, "the rejected messages", o.store.CountRejected}, {&out.Gaps, "the gaps", o.store.CountGaps}} {
		if *c.of, err = o.capped(ctx, lookLimit, c.count); err != nil && !missing.late(c.what, err) {
			return fail(err)
		}
		c.of.Unknown = err != nil
	}
	if out.Incomplete, err = missing.text(o.db); err != nil {
		return fail(err)
	}
	return out, nil
}

// missing is what the database did not read in time.
type missing struct {
	caller context.Context
	what   []string
}

// late reports whether an error means that the database was too slow, and notes what is missing because of it.
func (m *missing) late(what string, err error) bool {
	is := m.caller.Err() == nil && (store.TimedOut(err) || store.IsBusy(err))
	if is {
		m.what = append(m.what, what)
	}
	return is
}

// text says what is missing, and where to look for the cause; empty if nothing is.
func (m *missing) text(db *gorm.DB) (string, error) {
	if len(m.what) == 0 {
		return "", nil
	}
	d, err := dialects.Of(db)
	if err != nil {
		return "", err
	}
	return "the database did not count " + strings.Join(m.what, ", ") + " in time: " + d.Waits, nil
}

// Notes are why work of the handler stands still, each in a few words; empty if it does not, or nothing is known.
func (h HandlerOverview) Notes() (notes []string) {
	if h.Obstacle != "" {
		notes = append(notes, h.Obstacle)
	}
	if n := h.Orphaned; n.N == 1 && !n.Capped {
		notes = append(notes, "1 claim of a dead worker")
	} else if n.N > 0 {
		notes = append(notes, n.String()+" claims of dead workers")
	}
	if h.Parked.N == 1 && !h.Parked.Capped {
		notes = append(notes, "1 waits behind "+h.ParkedBy.String()+" poisoned")
	} else if h.Parked.N > 0 {
		notes = append(notes, h.Parked.String()+" wait behind "+h.ParkedBy.String()+" poisoned")
	}
	if h.Obstacle == "" && h.Processing.N == h.Orphaned.N && h.OldestDueAge >= idleFor {
		notes = append(notes, "nothing runs, the oldest is due for "+health.InWords(h.OldestDueAge.Truncate(time.Second)))
	}
	return notes
}

// idleFor is how long a status is due before a handler without calls stands still: longer than the polling interval.
const idleFor = time.Minute

// Activity is what the handler does: "running", "due" or "idle"; "standing" if it has an Obstacle, or if nothing runs
// and Notes say why; "unknown" if the database did not count in time.
func (h HandlerOverview) Activity() string {
	switch {
	case h.Obstacle != "":
		return "standing"
	case h.Processing.Unknown:
		return "unknown"
	case h.Processing.N > h.Orphaned.N:
		return "running"
	case len(h.Notes()) > 0:
		return "standing"
	case h.Due.N > 0:
		return "due"
	default:
		return "idle"
	}
}

// openStatuses returns the overviews of all handlers. With an error the counts that it has not read are unknown, and
// handlers that neither workers list nor operators have paused may be missing.
func (o *Ops) openStatuses(ctx context.Context, known declared, now time.Time) (all []HandlerOverview, err error) {
	open, err := o.allOpenKeys(ctx)
	for some := range slices.Chunk(known.handlers(open), keysAtOnce) {
		var of []HandlerOverview
		if err == nil { // after a timeout the next statement would time out, too
			of, err = o.overviewsOf(ctx, known, some, now)
		}
		if err != nil {
			of = unknownOverviews(some)
		}
		all = append(all, of...)
	}
	return all, err
}

func unknownOverviews(handlers []Handler) []HandlerOverview {
	all := make([]HandlerOverview, len(handlers))
	for i, h := range handlers {
		unknown := Count{Unknown: true}
		all[i] = overviewOf(h, store.OpenCounts{}, time.Time{})
		all[i].Pending, all[i].Due, all[i].Waiting = unknown, unknown, unknown
		all[i].Processing, all[i].Orphaned, all[i].Poisoned = unknown, unknown, unknown
		all[i].Parked, all[i].ParkedBy = unknown, unknown
	}
	return all
}

// keysAtOnce is how many handler keys are counted by one statement, which has a deadline.
const keysAtOnce = 10

// soon is how far the clock of a worker may be ahead of ours: the statuses that it processes were due by its clock.
const soon = time.Minute

// overviewsOf returns the overviews of some handlers.
func (o *Ops) overviewsOf(ctx context.Context, known declared, handlers []Handler, now time.Time) (
	[]HandlerOverview, error,
) {
	keys := make([]string, len(handlers))
	for i, h := range handlers {
		keys[i] = h.HandlerKey
	}
	counts, err := o.store.CountOpen(ctx, o.largePool(ctx), keys, lookLimit+1, now, now.Add(soon), known.living())
	if err != nil {
		return nil, err
	}
	of := map[string]store.OpenCounts{}
	for _, c := range counts {
		of[c.HandlerKey] = c
	}
	all := make([]HandlerOverview, len(handlers))
	for i, h := range handlers {
		c := of[h.HandlerKey]
		all[i] = overviewOf(h, c, now)
		if c.Poisoned > 0 && (c.Waiting > 0 || c.InLanes) {
			_, err = o.parked(ctx, known, &all[i])
		}
		if err == nil && c.InLanes {
			all[i], err = o.judgeLanes(ctx, all[i], c.Due, now)
		}
		if err != nil {
			return nil, fmt.Errorf("handler %q: %w", h.HandlerKey, err)
		}
	}
	return all, nil
}

// parked counts the statuses of a handler that wait for poisoned ones, and returns their lanes, the longest first.
func (o *Ops) parked(ctx context.Context, known declared, out *HandlerOverview) ([]store.ParkedLane, error) {
	lanes, err := o.store.ParkedLanes(ctx, o.largePool(ctx), out.HandlerKey, maxLaneChecks, lookLimit)
	if err != nil || len(lanes) == 0 {
		return nil, err
	}
	if skips, err := o.skipsPoisoned(ctx, known, out.HandlerKey); err != nil || skips {
		return nil, err
	}
	out.ParkedBy.Capped = out.Poisoned.Capped || out.Poisoned.N > maxLaneChecks
	out.Parked.Capped = out.ParkedBy.Capped
	for _, l := range lanes {
		out.Parked.N += l.Waiting
		out.Parked.Capped = out.Parked.Capped || l.Capped
		out.ParkedBy.N += l.Poisoned
	}
	return lanes, nil
}

// skipsPoisoned reports whether lanes of a handler key pass poisoned statuses, as this process or else a worker
// declares.
func (o *Ops) skipsPoisoned(ctx context.Context, known declared, handlerKey string) (bool, error) {
	if o.opts.Live != nil {
		if of, err := o.opts.Live.Subscription(handlerKey); !errors.Is(err, ErrNotFound) {
			return err == nil && of.Handler.SkipsPoisoned(), err
		}
	}
	settings, err := o.settings(ctx, known)
	its, _ := settingsOf(settings, handlerKey)
	return its != nil && its.SkipPoisoned, err
}

func overviewOf(h Handler, c store.OpenCounts, now time.Time) HandlerOverview {
	counted := func(n int64) Count { return Count{N: min(n, lookLimit), Capped: n > lookLimit} }
	out := HandlerOverview{HandlerKey: h.HandlerKey, Paused: h.Paused, Registered: h.Registered, Workers: h.Workers,
		StoredOnly: h.StoredOnly, Obstacle: h.Obstacle, Orphaned: counted(c.Orphaned), Waiting: counted(c.Waiting),
		Poisoned: counted(c.Poisoned), Processing: counted(c.Processing), Due: counted(c.Due)}
	if c.Looked > lookLimit {
		out.Processing.Capped, out.Orphaned.Capped, out.Due.Capped = true, c.Orphaned > 0, true
	}
	out.Pending = counted(c.Open)
	out.Pending.N += out.Waiting.N - out.Processing.N
	out.Pending.Capped = out.Pending.Capped || out.Waiting.Capped
	if c.Due > 0 {
		out.OldestDueAge = now.Sub(c.OldestDue)
	}
	return out
}

// maxLaneChecks is how many rows the overview checks for being first in their lane: each costs a lookup.
const maxLaneChecks = 1000

// laneRule returns how the lanes of a handler key run. Only the application knows that. Without it we assume that each
// lane has one name and waits for poisoned rows, which is the default.
func (o *Ops) laneRule(handlerKey string) (rule store.LaneRule, ordered bool, err error) {
	if o.opts.Live == nil {
		return rule, true, nil
	}
	of, err := o.opts.Live.Subscription(handlerKey)
	if errors.Is(err, ErrNotFound) { // another process's
		return rule, true, nil
	}
	if err != nil {
		return rule, false, err
	}
	for _, key := range of.Handler.Keys() {
		rule.Handlers = append(rule.Handlers, store.LaneHandler(key))
	}
	rule.SkipPoisoned = of.Handler.SkipsPoisoned()
	return rule, of.Handler.Ordered(), nil
}

// judgeLanes subtracts from the due statuses those that are not first in their lane, marked as waiting or not: no claim
// takes them.
func (o *Ops) judgeLanes(ctx context.Context, out HandlerOverview, due int64, now time.Time) (HandlerOverview, error) {
	rule, ordered, err := o.laneRule(out.HandlerKey)
	if err != nil || !ordered {
		return out, err
	}
	limits := []store.KeyLimit{{HandlerKey: out.HandlerKey, Limit: maxLaneChecks, Lanes: &rule}}
	var backlogs []store.Backlog
	err = o.connected(ctx, func(ctx context.Context) (err error) {
		backlogs, err = o.store.Backlog(ctx, limits, now)
		return err
	})
	if err != nil || len(backlogs) != 1 {
		return out, err
	}
	b := backlogs[0]
	behind := max(0, int64(b.Waiting)-min(out.Waiting.N, maxLaneChecks))
	unjudged := due > int64(b.Due)+behind
	out.Due = Count{N: int64(b.Due), Capped: out.Due.Capped || unjudged}
	out.Waiting = Count{N: min(out.Waiting.N+behind, lookLimit), Capped: out.Waiting.Capped || unjudged}
	if out.OldestDueAge = 0; b.Due > 0 {
		out.OldestDueAge = now.Sub(b.OldestDue)
	}
	return out, nil
}

// capped counts up to a limit.
func (o *access) capped(ctx context.Context, limit int64,
	count func(ctx context.Context, pool gorm.ConnPool, limit int64) (int64, error)) (Count, error) {
	n, err := count(ctx, o.pool(ctx), limit+1)
	return Count{N: min(n, limit), Capped: n > limit}, err
}
