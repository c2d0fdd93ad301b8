package processor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// maxSkew is how far this worker's clock may differ from the database's without a warning.
const maxSkew = time.Minute

// fleet reads from the rows of all workers which handlers are new, and detects set-up mistakes: a
// wrong clock, workers with other handlers, or with ours on other channels, pending statuses of handlers that no
// program has, and workers whose open transactions this one could not end.
type fleet struct {
	*shared
	keys []string

	mu        sync.Mutex
	soughtNew bool          // findNew has run
	skew      time.Duration // how far our clock is ahead; 0 if it is within maxSkew
	// others are the sets of handler keys, other than ours, of living workers. The value is when
	// we first saw the set, by the machine's clock; zero once we have warned.
	others map[string]time.Time
	// unknown are the keys of pending statuses that no program lists, and when we first saw them, by
	// the machine's clock. warned are those that were logged.
	unknown map[string]time.Time
	warned  map[string]bool
	// split are handler keys with another program's namespace that were logged.
	split map[[2]string]bool
	// barred are the database roles of workers whose transactions we could not end if they died. me is our own role.
	barred []string
	me     string
}

func newFleet(s *shared) *fleet {
	return &fleet{shared: s, keys: s.registry.Keys(), others: map[string]time.Time{}, unknown: map[string]time.Time{},
		warned: map[string]bool{}, split: map[[2]string]bool{}}
}

// check checks the workers' rows. asked is right before they were read, by the monotonic clock; self is our own ID.
func (f *fleet) check(self string, workers []store.WorkerState, asked time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(workers) > 0 && !workers[0].Read.IsZero() && !clock.IsTest(f.clock.Injected) {
		now := f.clock.Injected.Now()
		f.compareClocks(now.Add(-time.Since(asked)), now, workers[0].Read)
	}
	f.findNew(self, workers)
	f.compareHandlers(workers)
	f.compareNamespaces(workers)
	f.compareRoles(self, workers)
}

// compareClocks compares the database's clock with ours, which showed asked before the read and now after it.
func (f *fleet) compareClocks(asked, now, database time.Time) {
	skew := time.Duration(0)
	switch {
	case asked.Sub(database) > maxSkew:
		skew = asked.Sub(database)
	case database.Sub(now) > maxSkew:
		skew = now.Sub(database)
	}
	switch {
	case skew != 0 && f.skew == 0:
		f.log.Warn("inbox: this machine's clock is not the database's: times that it stores, such as when a message was received, are wrong; synchronize the machines' clocks (NTP)",
			zap.Duration(telemetry.FieldAhead, skew))
	case skew == 0 && f.skew != 0:
		f.log.Info("inbox: this machine's clock agrees with the database's again")
	}
	f.skew = skew
}

// findNew logs, once, which of our handlers are new: an older row does not list them, and the first row that does began
// within UnknownKeyGrace before ours. So every process of the deploy that adds a handler logs it, and no later process
// does (contract 11.5).
func (f *fleet) findNew(self string, workers []store.WorkerState) {
	at := slices.IndexFunc(workers, func(w store.WorkerState) bool { return w.ID == self })
	if f.soughtNew || at < 0 {
		return
	}
	f.soughtNew = true
	began, since := workers[at].StartedAt, workers[at].StartedAt
	var found []string
	for s := range f.registry.Subscriptions() {
		if s.Synchronous {
			continue
		}
		lists := func(w store.WorkerState) bool {
			return slices.ContainsFunc(s.Handler.Keys(), func(key string) bool { return slices.Contains(w.HandlerKeys, key) })
		}
		first := began
		for _, w := range workers {
			if lists(w) && w.StartedAt.Before(first) {
				first = w.StartedAt
			}
		}
		older := func(w store.WorkerState) bool { return !lists(w) && w.StartedAt.Before(first) }
		if began.Sub(first) > f.opts.UnknownKeyGrace || !slices.ContainsFunc(workers, older) {
			continue
		}
		found = append(found, s.Handler.Key())
		if first.Before(since) {
			since = first
		}
	}
	if len(found) > 0 {
		f.log.Warn("inbox: handlers are new: messages that programs without them have accepted, or still accept, have no statuses for them; "+
			"once every program has them, backfill them if they are to run on those: on the dashboard's page Handlers, or by ops.Ops.Backfill",
			zap.Strings(telemetry.FieldHandlerKeys, found), zap.Time(telemetry.FieldSince, since))
	}
}

// compareHandlers warns of living workers that have had other handlers than ours for
// UnknownKeyGrace, when any deploy is over. It warns once for each set of keys.
func (f *fleet) compareHandlers(workers []store.WorkerState) {
	met := map[string]bool{}
	for _, w := range workers {
		if w.Stopped || w.Released || w.SilentFor > f.opts.WorkerTimeout {
			continue
		}
		keys := slices.Sorted(slices.Values(w.HandlerKeys))
		if slices.Equal(keys, f.keys) {
			continue
		}
		set := strings.Join(keys, ", ")
		met[set] = true
		since, known := f.others[set]
		switch {
		case !known:
			f.others[set] = time.Now()
		case !since.IsZero() && time.Since(since) >= f.opts.UnknownKeyGrace:
			f.others[set] = time.Time{}
			f.log.Warn("inbox: another program processes this inbox with other handlers: each stores statuses for its own handlers alone; "+
				"deploy one version and backfill its new handlers, or give each program an inbox of its own (TablePrefix)",
				zap.String(telemetry.FieldWorker, w.ID), zap.String(telemetry.FieldHost, w.Host),
				zap.Strings(telemetry.FieldHandlerKeys, difference(keys, f.keys)),
				zap.Strings(telemetry.FieldMissing, difference(f.keys, keys)))
		}
	}
	maps.DeleteFunc(f.others, func(set string, _ time.Time) bool { return !met[set] })
}

// workers reads the rows of all workers.
func (s *shared) workers(ctx context.Context) ([]store.WorkerState, error) {
	stmt, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	workers, err := s.store.Workers(stmt, s.clock.Now())
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return workers, nil
}

// difference returns the keys that are not in others, at most ten.
func difference(keys, others []string) []string {
	rest := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return slices.Contains(others, key) })
	return rest[:min(len(rest), maxNamed)]
}

// compareNamespaces warns of handler keys that another program declares on a channel of another
// namespace, once of each.
func (f *fleet) compareNamespaces(workers []store.WorkerState) {
	for _, w := range workers {
		if !f.opts.listsKeys(w) {
			continue
		}
		for key, theirs := range w.Namespaces {
			ours, has := f.namespaces[key]
			if !has || ours == theirs || f.split[[2]string{key, theirs}] {
				continue
			}
			f.split[[2]string{key, theirs}] = true
			f.log.Warn("inbox: another program declares a handler key on another channel: each program runs the messages of its own channel, and reads past those of the other; "+
				"give one of the handlers another key, or deploy one version if the handler was moved",
				zap.String(telemetry.FieldHandlerKey, key), zap.String(telemetry.FieldWorker, w.ID),
				zap.String(telemetry.FieldHost, w.Host), zap.String(telemetry.FieldChannel, theirs))
		}
	}
}

// compareRoles warns of workers whose PostgreSQL role has sessions that our role may neither see
// nor end. If such a worker is frozen or cut off during a handler's transaction, its claims stay
// locked for as long as that transaction is open.
func (f *fleet) compareRoles(self string, workers []store.WorkerState) {
	var barred []string
	for _, w := range workers {
		if w.ID == self {
			f.me = w.DatabaseRole
		}
		if !w.Evictable && !w.Released && !w.Stopped && !slices.Contains(barred, w.DatabaseRole) {
			barred = append(barred, w.DatabaseRole)
		}
	}
	slices.Sort(barred)
	switch {
	case len(barred) > 0 && !slices.Equal(barred, f.barred):
		f.log.Warn("inbox: workers use database roles whose sessions this worker's role can neither see nor end: what they leave open when "+
			"they are frozen or cut off stays locked; GRANT pg_read_all_stats, pg_signal_backend to each worker's role",
			zap.Strings(telemetry.FieldRoles, barred), zap.String(telemetry.FieldRole, f.me))
	case len(barred) == 0 && len(f.barred) > 0:
		f.log.Info("inbox: this worker's role can end the sessions of all workers' roles again",
			zap.String(telemetry.FieldRole, f.me))
	}
	f.barred = barred
}

// compareKeys finds the keys of pending statuses that no program lists. It logs them, and health
// reports them, once they have been unknown for UnknownKeyGrace: in a rolling deploy a message can be
// accepted just before the worker that knows its handler registers (contract 5.7).
func (f *fleet) compareKeys(pending []string, workers []store.WorkerState) {
	unknown := f.opts.unknownKeys(pending, f.keys, workers)
	f.mu.Lock()
	maps.DeleteFunc(f.unknown, func(key string, _ time.Time) bool { return !slices.Contains(unknown, key) })
	for _, key := range unknown {
		if _, seen := f.unknown[key]; !seen {
			f.unknown[key] = time.Now()
		}
	}
	late := f.unknownKeys()
	f.mu.Unlock()
	f.warnUnknown(late)
}

// warnUnknown warns of unknown keys, once of each.
func (f *fleet) warnUnknown(keys []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		if !f.warned[key] {
			f.warned[key] = true
			f.log.Warn("inbox: pending statuses of a handler key that no program lists, they wait: deploy the handler again, "+
				"give the key to handler.LegacyKeys of the handler that has replaced it, or discard them",
				zap.String(telemetry.FieldHandlerKey, key))
		}
	}
}

// unknownKeys returns the keys that have been unknown for UnknownKeyGrace, sorted. The caller holds f.mu.
func (f *fleet) unknownKeys() []string {
	var keys []string
	for key, first := range f.unknown {
		if time.Since(first) >= f.opts.UnknownKeyGrace {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// report stores in h what the workers' rows have shown.
func (f *fleet) report(h *Health) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h.ClockSkew, h.BarredRoles, h.DatabaseRole, h.UnknownKeys = f.skew, slices.Clone(f.barred), f.me, f.unknownKeys()
}

// listsKeys reports whether the handler keys of a worker's row count as known. Keys of stopped and
// dead workers count for UnknownKeyGrace; keys of drains for at least store.DrainKept.
func (o Options) listsKeys(w store.WorkerState) bool {
	grace := o.UnknownKeyGrace
	if w.Drains {
		grace = max(grace, store.DrainKept)
	}
	return w.SilentFor <= o.WorkerTimeout+grace
}

// unknownKeys returns the pending handler keys that neither known nor any worker's row lists.
func (o Options) unknownKeys(pending, known []string, workers []store.WorkerState) []string {
	return slices.DeleteFunc(slices.Clone(pending), func(key string) bool {
		return slices.Contains(known, key) || slices.ContainsFunc(workers, func(w store.WorkerState) bool {
			return slices.Contains(w.HandlerKeys, key) && o.listsKeys(w)
		})
	})
}

// notePrograms records which handler keys this program drains, for the workers of other programs.
// It also warns of pending keys that no program lists. While the processor is started its heartbeats
// and sweeps do both, so notePrograms does nothing.
func (p *Processor) notePrograms(ctx context.Context) error {
	if p.now.Load() != nil {
		return nil
	}
	last := p.drained.Load()
	due := last == nil || time.Since(*last) >= p.opts.HeartbeatInterval
	stmt, cancel := context.WithTimeout(ctx, p.opts.StatementTimeout)
	defer cancel()
	if due {
		if err := p.store.RecordDrain(stmt, p.drainRow(), p.clock.Now()); err != nil {
			return fmt.Errorf("process pending: %w", err)
		}
	}
	pending, err := p.store.PendingKeys(stmt)
	if err != nil {
		return fmt.Errorf("process pending: pending handler keys: %w", err)
	}
	unknown := p.opts.unknownKeys(pending, p.registry.Keys(), nil)
	if len(unknown) > 0 {
		workers, err := p.store.Workers(stmt, p.clock.Now())
		if err != nil {
			return fmt.Errorf("process pending: list workers: %w", err)
		}
		unknown = p.opts.unknownKeys(unknown, nil, workers)
	}
	if due {
		now := time.Now()
		p.drained.Store(&now)
	}
	p.fleet.warnUnknown(unknown)
	return nil
}

// drainRow returns the row that all programs share that drain the same handlers. One row per
// process would fill the table, because each run of a cron job is a new process.
func (p *Processor) drainRow() store.Worker {
	row := p.row()
	var listed strings.Builder
	for _, key := range row.HandlerKeys {
		fmt.Fprintf(&listed, "%s\x00%s\x00", key, row.Namespaces[key])
	}
	row.ID = uuid.NewSHA1(uuid.Nil, []byte(listed.String())).String()
	return row
}

// row returns the fields that all rows of this program share.
func (p *Processor) row() store.Worker {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return store.Worker{Host: host, PID: os.Getpid(), HandlerKeys: p.registry.Keys(), Namespaces: p.namespaces,
		Settings: p.settings}
}
