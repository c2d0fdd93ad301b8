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

// maxSkew is how far this worker's clock may be from the database's: retries
// and due times are judged to the second at best (contract 3.5).
const maxSkew = time.Minute

// fleet judges what the rows of all workers show of mistakes in their set-up:
// a clock that is wrong, workers with other handlers, and workers whose
// transactions ours could not end.
type fleet struct {
	opts  Options
	keys  []string
	clock clock.Clock
	log   *zap.Logger

	mu   sync.Mutex
	skew time.Duration // how far our clock is ahead; 0 if that is not much
	// foreign are living workers' sets of handler keys other than ours: since
	// when they have been met, by the machine's clock; zero once warned of.
	foreign map[string]time.Time
	// barred are the database roles of workers whose transactions ours, me, could not
	// end if they died.
	barred []string
	me     string
}

func newFleet(opts Options, keys []string, c clock.Clock, log *zap.Logger) *fleet {
	return &fleet{opts: opts, keys: slices.Sorted(slices.Values(keys)), clock: c, log: log,
		foreign: map[string]time.Time{}}
}

// look judges rows that were read after our clock showed asked; ours is self.
func (f *fleet) look(self string, workers []store.WorkerState, asked time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(workers) > 0 && !workers[0].Read.IsZero() && !clock.IsTest(f.clock) {
		f.compareClocks(asked, f.clock.Now(), workers[0].Read)
	}
	f.compareHandlers(workers)
	f.compareRoles(self, workers)
}

// compareClocks compares the database's clock with ours, which showed asked
// before and now after.
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
		f.log.Info("inbox: this machine's clock is the database's again")
	}
	f.skew = skew
}

// compareHandlers warns, once for each set, of living workers with other
// handlers than ours that have been there for UnknownKeyGrace: a deploy is over
// by then.
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

// compareRoles warns of workers that have logged in to PostgreSQL as a role whose
// sessions ours may neither see nor end. If one of them is frozen or cut off while a
// handler's transaction is open, its claims stay locked for as long as it is.
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

// barredRoles are the database roles whose sessions that of ours, me, cannot end.
func (f *fleet) barredRoles() (barred []string, me string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.barred), f.me
}

// without returns the keys that are not in others, ten at most.
func without(keys, others []string) []string {
	rest := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return slices.Contains(others, key) })
	return rest[:min(len(rest), mostNamed)]
}

// clockSkew is how far our clock is ahead of the database's; 0 if that is not
// much, or not known.
func (f *fleet) clockSkew() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.skew
}
