package processor

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// maxSkew is how far this worker's clock may differ from the database's without a warning. Due
// times are accurate to the second at best.
const maxSkew = time.Minute

// fleet detects set-up mistakes in the rows of all workers: a wrong clock, workers with other
// handlers, and workers whose open transactions this one could not end.
type fleet struct {
	opts  Options
	keys  []string
	clock clock.Clock
	log   *zap.Logger

	mu   sync.Mutex
	skew time.Duration // how far our clock is ahead; 0 if it is within maxSkew
	// foreign are the sets of handler keys, other than ours, of living workers. The value is when
	// we first saw the set, by the machine's clock; zero once we have warned.
	foreign map[string]time.Time
	// barred are the database roles of workers whose transactions we could not end if they died. me
	// is our own role.
	barred []string
	me     string
}

func newFleet(opts Options, keys []string, c clock.Clock, log *zap.Logger) *fleet {
	return &fleet{opts: opts, keys: slices.Sorted(slices.Values(keys)), clock: c, log: log,
		foreign: map[string]time.Time{}}
}

// check checks the workers' rows. asked is our clock's time right before they were read; self is our
// own ID.
func (f *fleet) check(self string, workers []store.WorkerState, asked time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(workers) > 0 && !workers[0].Read.IsZero() && !clock.IsTest(f.clock) {
		f.compareClocks(asked, f.clock.Now(), workers[0].Read)
	}
	f.compareHandlers(workers)
	f.compareRoles(self, workers)
}

// compareClocks compares the database's clock with ours, which showed asked before the read and now
// after it.
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
		f.log.Warn("inbox: this machine's clock is not the database's: retries come too early or too late, here and in other workers; synchronize the machines' clocks (NTP)",
			zap.Duration(telemetry.FieldAhead, skew))
	case skew == 0 && f.skew != 0:
		f.log.Info("inbox: this machine's clock agrees with the database's again")
	}
	f.skew = skew
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
		since, known := f.foreign[set]
		switch {
		case !known:
			f.foreign[set] = time.Now()
		case !since.IsZero() && time.Since(since) >= f.opts.UnknownKeyGrace:
			f.foreign[set] = time.Time{}
			f.log.Warn("inbox: another program processes this inbox with other handlers: each stores statuses for its own handlers alone; "+
				"deploy one version, or give each program an inbox of its own (TablePrefix)",
				zap.String(telemetry.FieldWorker, w.ID), zap.String(telemetry.FieldHost, w.Host),
				zap.Strings(telemetry.FieldHandlerKeys, without(keys, f.keys)),
				zap.Strings(telemetry.FieldMissing, without(f.keys, keys)))
		}
	}
	maps.DeleteFunc(f.foreign, func(set string, _ time.Time) bool { return !met[set] })
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

// barredRoles returns the database roles whose sessions ours, me, cannot end.
func (f *fleet) barredRoles() (barred []string, me string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.barred), f.me
}

// without returns the keys that are not in others, at most ten.
func without(keys, others []string) []string {
	rest := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return slices.Contains(others, key) })
	return rest[:min(len(rest), mostNamed)]
}

// clockSkew returns how far our clock is ahead of the database's; 0 if it is within maxSkew or not
// known.
func (f *fleet) clockSkew() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.skew
}
