package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// HandlerDetail is one handler key with all that is known of it.
type HandlerDetail struct {
	HandlerOverview
	// At is when it was read.
	At time.Time
	// WorkersListing are the living workers that list the key, each with the reasons that concern it: an open circuit
	// breaker with since when, why and the next probe, or calls that do not return.
	WorkersListing []Worker
	// Settings are those of the worker that started last; nil if no living worker has stored any. SettingsDiffer means
	// that another living worker has others, as during a deploy.
	Settings       *HandlerSettings
	SettingsDiffer bool
	// Calls are the claimed statuses, those claimed longest ago first, at most 100. Claims that wait in a worker's memory
	// for a slot are among them. Calls of Inline and Direct channels have no status: WorkersListing reports those that
	// do not return.
	Calls []ClaimedCall
	// Lanes are the ten longest lanes that wait for poisoned statuses; Parked counts all.
	Lanes []ParkedLane
	// Recent sums up the statuses of the latest messages.
	Recent Recent
	// Failures are the five largest groups of its poisoned and failing statuses.
	Failures []FailureGroup
	// EndedSince is since when Ended counts, see Overview.
	EndedSince time.Time `json:",omitzero"`
	// Incomplete is as in Overview: what could not be read in time is Unknown or empty.
	Incomplete string
}

// ClaimedCall is a claimed status.
type ClaimedCall struct {
	Status Status
	// Age is the time since the claim. Attempt is its number.
	Age     time.Duration
	Attempt int
	// Host, PID and SilentFor are its worker's; empty if that has no row, as for a claim of a ProcessPending.
	Host      string
	PID       int
	SilentFor time.Duration
	// Dead means that the worker does not live, so the call has ended with it. ReclaimedAt is about when a living worker
	// makes the status due again; zero if none lives.
	Dead        bool
	ReclaimedAt time.Time
}

// ParkedLane is a lane whose first status is poisoned.
type ParkedLane struct {
	// HeadMessageID and HeadNamespace are the message of the first poisoned status.
	HeadMessageID string
	HeadNamespace string
	// Poisoned counts the lane's poisoned statuses, and Waiting those that wait. See HandlerOverview.Parked for limits.
	Poisoned int64
	Waiting  Count
}

// Recent sums up a handler's statuses of the messages received last. If older ones are due, it also reads as many
// messages before the oldest due one. Completed statuses have no index by time, so it says nothing of others.
type Recent struct {
	// Messages is how many were read, of any handler. Capped means that there were more.
	Messages int
	Capped   bool
	// Statuses is how many of the messages have a status of the handler.
	Statuses int
	// Hours are the last six hours, the latest first. If Capped, they begin with the first of the completions read.
	Hours []RecentHour
}

// RecentHour sums up the statuses that ended within an hour or, at the beginning of a sample, a part of one.
type RecentHour struct {
	From, To time.Time
	// Completed counts the statuses that the handler has processed, and PerMinute is their rate.
	Completed int
	PerMinute float64
	Poisoned  int
	// Failed counts the failed attempts of the completed and the poisoned statuses, since they were last retried.
	Failed int
	// Median, P95 and Longest are the times from acceptance to completion, retries and waiting included. How long a
	// completed call took is not stored.
	Median  time.Duration
	P95     time.Duration
	Longest time.Duration
}

// WorkerSettings is what a worker stores of its settings.
type WorkerSettings struct {
	WorkerTimeout time.Duration     `json:"worker_timeout"`
	SweepInterval time.Duration     `json:"sweep_interval"`
	Handlers      []HandlerSettings `json:"handlers"`
}

// HandlerSettings are a handler's effective settings in a process.
type HandlerSettings struct {
	// Keys are its handler key and its legacy keys.
	Keys    []string `json:"keys"`
	Channel string   `json:"channel"`
	// Mode is Inbox, Inline or Direct.
	Mode string `json:"mode"`
	// Type is the message type that it subscribes to, * for all. Kind is plain or transactional.
	Type string `json:"type"`
	Kind string `json:"kind"`
	// Timeout is of each attempt, 0 for none. Concurrency limits its calls at once in one worker.
	Timeout     time.Duration `json:"timeout"`
	Concurrency int           `json:"concurrency"`
	MaxRetries  int           `json:"max_retries"`
	// FleetConcurrency limits its calls at once in all workers, Rate and Burst how many start, RateByKey for each key; 0
	// without.
	FleetConcurrency int     `json:"fleet_concurrency"`
	Rate             float64 `json:"rate"`
	Burst            int     `json:"burst"`
	RateByKey        bool    `json:"rate_by_key"`
	// Retention is 0 for forever.
	Retention time.Duration `json:"retention"`
	// Ordered means that it has lanes, and SkipPoisoned that these pass poisoned statuses.
	Ordered      bool `json:"ordered"`
	SkipPoisoned bool `json:"skip_poisoned"`
	// Destination is where the messages of an outgoing channel leave to, empty for other channels.
	Destination string `json:"destination,omitempty"`
	// BatchSize and TxGroup are 1 without.
	BatchSize int `json:"batch_size"`
	TxGroup   int `json:"tx_group"`
	// BreakerFailures is after how many failures in a row its circuit breaker opens, for BreakerOpenFor; 0 without one.
	BreakerFailures int           `json:"breaker_failures"`
	BreakerOpenFor  time.Duration `json:"breaker_open_for"`
}

// String describes the settings in a line.
func (s HandlerSettings) String() string {
	of := "messages of type " + s.Type
	if s.Type == "*" {
		of = "all messages"
	}
	parts := []string{fmt.Sprintf("%s of %s channel %s", of, s.Mode, s.Channel), s.Kind}
	if s.Destination != "" {
		parts = []string{fmt.Sprintf("publishes the messages of outgoing channel %s to %s", s.Channel, s.Destination)}
	}
	add := func(applies bool, format string, args ...any) {
		if applies {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(len(s.Keys) > 1, "legacy keys %q", s.Keys[min(1, len(s.Keys)):])
	add(s.BatchSize > 1, "batches of %d", s.BatchSize)
	add(s.TxGroup > 1, "%d share a transaction", s.TxGroup)
	add(s.Timeout == 0, "no timeout")
	add(s.Timeout > 0, "timeout %s", health.InWords(s.Timeout))
	add(s.MaxRetries < math.MaxInt32, "poisoned after %d failures", max(s.MaxRetries, 1))
	add(s.MaxRetries >= math.MaxInt32, "tried without limit")
	stored := s.Mode == "Inbox"
	add(stored, "%d calls at once in a worker", s.Concurrency)
	add(s.FleetConcurrency > 0, "%d in all workers", s.FleetConcurrency)
	add(s.Burst > 0 && !s.RateByKey, "%g calls a second in all workers, %d at once", s.Rate, s.Burst)
	add(s.Burst > 0 && s.RateByKey, "%g calls a second of each key in all workers, %d at once", s.Rate, s.Burst)
	add(stored && s.Retention == 0, "kept forever")
	add(stored && s.Retention > 0, "kept for %s", health.InWords(s.Retention))
	add(s.Ordered && s.SkipPoisoned, "in lanes that pass poisoned messages")
	add(s.Ordered && !s.SkipPoisoned, "in lanes that wait for poisoned messages")
	add(s.BreakerFailures > 0, "circuit breaker opens after %d failures for %s", s.BreakerFailures,
		health.InWords(s.BreakerOpenFor))
	return strings.Join(parts, ", ")
}

// Note says what has become of a claim whose worker is dead; empty for others.
func (c ClaimedCall) Note(now time.Time) string {
	switch {
	case !c.Dead:
		return ""
	case c.ReclaimedAt.IsZero():
		return "its worker is dead, and no worker lives that reclaims it"
	default:
		return "its worker is dead, another one reclaims it in about " +
			health.InWords(max(0, c.ReclaimedAt.Sub(now)).Round(time.Second))
	}
}

// String says of which messages it is.
func (r Recent) String() string {
	if r.Capped {
		return fmt.Sprintf("of the last %d messages read, %d have a status of the handler", r.Messages, r.Statuses)
	}
	return fmt.Sprintf("of all %d messages received within %d hours, %d have a status of the handler", r.Messages, recentHours,
		r.Statuses)
}

const (
	maxCalls        = 100
	maxLanesShown   = 10
	maxGroupsShown  = 5
	recentHours     = 6
	sweepsUntilDead = 2 // contract 5.9
)

// Handler returns what is known of a handler key. If the statuses are locked or slow, it returns what it could read, as
// Overview does. ErrNotFound means that no living worker lists the key, that it is not paused, and that neither open
// statuses nor the latest messages have it.
func (o *Ops) Handler(ctx context.Context, handlerKey string) (HandlerDetail, error) {
	caller := ctx
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	fail := func(err error) (HandlerDetail, error) {
		return HandlerDetail{}, fmt.Errorf("handler %q: %w", handlerKey, err)
	}
	if err := checkText("handler key", handlerKey, 1, columns.MaxHandlerKey); err != nil {
		return HandlerDetail{}, err
	}
	out := HandlerDetail{}
	var err error
	if out.At, err = o.Now(ctx); err != nil {
		return fail(err)
	}
	known, err := o.declared(ctx)
	if err != nil {
		return fail(err)
	}
	handlers := known.handlers(nil)
	i := slices.IndexFunc(handlers, func(h Handler) bool { return h.HandlerKey == handlerKey })
	declares, h := i >= 0, Handler{HandlerKey: handlerKey}
	if declares {
		h = handlers[i]
	} else {
		h.Obstacle = h.obstacle(nil)
	}
	out.WorkersListing = known.listing(handlerKey)
	settings, err := o.settings(ctx, known)
	if err != nil {
		return fail(err)
	}
	out.Settings, out.SettingsDiffer = settingsOf(settings, handlerKey)
	missing := missing{caller: caller}
	if err := o.statusesOf(ctx, h, known, sweepsOf(settings), &out); err != nil && !missing.late("its statuses", err) {
		return fail(err)
	}
	out.StoredOnly = !h.Registered && out.Pending.N+out.Processing.N+out.Poisoned.N > 0
	if out.Incomplete, err = missing.text(o.db); err != nil {
		return fail(err)
	}
	if !declares && !out.StoredOnly && out.Recent.Statuses == 0 && out.Incomplete == "" {
		return fail(ErrNotFound)
	}
	if o.opts.Live != nil {
		var ended map[string]Ended
		out.EndedSince, ended = o.opts.Live.Ended()
		out.Ended = ended[handlerKey]
	}
	return out, nil
}

// listing returns the living workers that list a key, each with the reasons that concern it.
func (known declared) listing(handlerKey string) (all []Worker) {
	for _, w := range known.workers {
		if w.Alive && slices.Contains(w.HandlerKeys, handlerKey) {
			w.Reasons = slices.DeleteFunc(slices.Clone(w.Reasons), func(r HealthReason) bool {
				return r.HandlerKey != handlerKey
			})
			all = append(all, w)
		}
	}
	return all
}

// statusesOf reads what the statuses say of a handler. It ends with the first error: after a timeout the next statement
// would time out, too.
func (o *Ops) statusesOf(ctx context.Context, h Handler, known declared, sweeps WorkerSettings, out *HandlerDetail,
) error {
	out.HandlerOverview = unknownOverviews([]Handler{h})[0]
	counted, err := o.overviewsOf(ctx, known, []Handler{h}, out.At)
	if err != nil {
		return err
	}
	out.HandlerOverview = counted[0]
	if out.Processing.N > 0 {
		claims, err := o.store.Claims(ctx, o.largePool(ctx), h.HandlerKey, lookLimit, maxCalls, out.At.Add(soon))
		if err != nil {
			return err
		}
		for i := range claims {
			out.Calls = append(out.Calls, o.claimedCall(&claims[i], known, sweeps, out.At))
		}
	}
	if out.Parked.N > 0 {
		if out.Lanes, err = o.parkedLanes(ctx, known, out.HandlerOverview); err != nil {
			return err
		}
	}
	failures, err := o.Failures(ctx, Filter{HandlerKeys: []string{h.HandlerKey}})
	if err != nil {
		return err
	}
	out.Failures = failures.Groups[:min(len(failures.Groups), maxGroupsShown)]
	out.Recent, err = o.recent(ctx, h.HandlerKey, out.At, out.OldestDueAge)
	return err
}

func (o *Ops) claimedCall(claim *store.StatusRow, known declared, sweeps WorkerSettings, now time.Time) ClaimedCall {
	c := ClaimedCall{Status: o.statusSearch.status(claim), Attempt: claim.ErrorCount + claim.AbandonedCount + 1}
	c.Age = now.Sub(c.Status.ProcessingStartedAt)
	i := slices.IndexFunc(known.workers, func(w Worker) bool { return w.ID == c.Status.WorkerID })
	if i >= 0 {
		w := known.workers[i]
		c.Host, c.PID, c.SilentFor = w.Host, w.PID, w.SilentFor
	}
	if c.Dead = c.Status.WorkerID != "" && (i < 0 || !known.workers[i].Alive); c.Dead && len(known.living()) > 0 {
		wait := sweepsUntilDead * sweeps.SweepInterval
		if i >= 0 && !known.workers[i].Stopped && !known.workers[i].Released {
			wait += max(0, sweeps.WorkerTimeout-c.SilentFor)
		}
		c.ReclaimedAt = now.Add(wait)
	}
	return c
}

// settings returns what the living workers have stored of their settings, the latest started first. A row that is no
// JSON says nothing: it must not hide what the others say.
func (o *Ops) settings(ctx context.Context, known declared) (all []WorkerSettings, err error) {
	stored, err := o.store.StoredSettings(ctx, o.pool(ctx), maxConsuming)
	living := known.living()
	for _, s := range stored {
		var of WorkerSettings
		if slices.Contains(living, s.WorkerID) && json.Unmarshal([]byte(s.Settings), &of) == nil {
			all = append(all, of)
		}
	}
	return all, err
}

// settingsOf returns a handler key's settings in the worker that started last, and whether another worker has others.
func settingsOf(all []WorkerSettings, handlerKey string) (its *HandlerSettings, differ bool) {
	for _, of := range all {
		for _, h := range of.Handlers {
			switch {
			case !slices.Contains(h.Keys, handlerKey):
			case its == nil:
				its = &h
			default:
				differ = differ || !reflect.DeepEqual(*its, h)
			}
		}
	}
	return its, differ
}

// sweepsOf returns by which intervals a living worker reclaims a dead one's claims: the shortest ones stored, or the
// defaults.
func sweepsOf(all []WorkerSettings) WorkerSettings {
	all = slices.DeleteFunc(slices.Clone(all), func(s WorkerSettings) bool { return s.WorkerTimeout == 0 })
	if len(all) == 0 {
		return WorkerSettings{WorkerTimeout: aliveFor, SweepInterval: 5 * time.Second}
	}
	return slices.MinFunc(all, func(a, b WorkerSettings) int { return cmp.Compare(a.WorkerTimeout, b.WorkerTimeout) })
}

// recent reads the latest messages, and those before the oldest due status if they are others: what completes in a
// backlog was received long ago.
func (o *Ops) recent(ctx context.Context, handlerKey string, now time.Time, oldestDue time.Duration) (
	out Recent, err error,
) {
	begin := now.Add(-recentHours * time.Hour)
	scan := store.RecentScan{HandlerKey: handlerKey, From: begin, To: now.Add(soon), Depth: recentLimit}
	read, err := o.store.RecentStatuses(ctx, o.largePool(ctx), scan)
	if err != nil {
		return out, err
	}
	latest := read
	if scan.To = now.Add(-oldestDue); oldestDue > 0 && (read.Messages == recentLimit && scan.To.Before(read.Earliest) ||
		scan.To.Before(begin)) {
		scan.From = time.Time{}
		if latest, err = o.store.RecentStatuses(ctx, o.largePool(ctx), scan); err != nil {
			return out, err
		}
		out.Messages, read.Statuses = latest.Messages, append(read.Statuses, latest.Statuses...)
	}
	out.Capped = read.Messages == recentLimit || latest.Messages == recentLimit
	out.Messages, out.Statuses = out.Messages+read.Messages, len(read.Statuses)
	out.Hours = hoursOf(read.Statuses, now, out.Capped)
	return out, nil
}

// hoursOf sums up statuses by the hour in which they ended. Nothing is known of the time before a sample's first
// completion.
func hoursOf(statuses []models.HandlerStatus, now time.Time, sample bool) (hours []RecentHour) {
	first := now
	took := make([][]time.Duration, recentHours)
	sums := make([]RecentHour, recentHours)
	for _, s := range statuses {
		ended := cmp.Or(s.CompletedAt, s.PoisonedAt)
		if ended == nil || s.CompletedAt != nil && s.Outcome != models.OutcomeProcessed {
			continue
		}
		i := int(max(0, now.Sub(*ended)) / time.Hour)
		if i >= recentHours {
			continue
		}
		sums[i].Failed += s.ErrorCount
		if s.CompletedAt == nil {
			sums[i].Poisoned++
			continue
		}
		sums[i].Completed++
		took[i] = append(took[i], s.CompletedAt.Sub(s.CreatedAt))
		if s.CompletedAt.Before(first) {
			first = *s.CompletedAt
		}
	}
	for i := range sums {
		h := &sums[i]
		h.From, h.To = now.Add(-time.Duration(i+1)*time.Hour), now.Add(-time.Duration(i)*time.Hour)
		if sample && h.From.Before(first) {
			h.From = first
		}
		if !h.From.Before(h.To) {
			break
		}
		if n := len(took[i]); n > 0 {
			slices.Sort(took[i])
			h.Median, h.P95, h.Longest = took[i][n/2], took[i][n*95/100], took[i][n-1]
			h.PerMinute = float64(n) / max(h.To.Sub(h.From), time.Second).Minutes()
		}
		hours = append(hours, *h)
	}
	return hours
}

// parkedLanes returns the longest of a handler's parked lanes.
func (o *Ops) parkedLanes(ctx context.Context, known declared, of HandlerOverview) (all []ParkedLane, err error) {
	lanes, err := o.parked(ctx, known, &of)
	for _, l := range lanes[:min(len(lanes), maxLanesShown)] {
		head, err := o.store.LaneHead(ctx, o.pool(ctx), l.Lane, true)
		if err != nil {
			return nil, err
		}
		if head != nil { // still
			all = append(all, ParkedLane{HeadMessageID: head.MessageID, HeadNamespace: head.Namespace, Poisoned: l.Poisoned,
				Waiting: Count{N: l.Waiting, Capped: l.Capped}})
		}
	}
	return all, err
}
