package inbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
	"github.com/gorm-inbox/inbox/redact"
)

// fewPoisoned is how many poisoned statuses it takes to judge their rate: poisoning is meant for single bad messages.
const fewPoisoned = 10

// judge sets the reasons and the state.
func (h *Health) judge(s *sampler, o Options) {
	h.State = HealthHealthy
	s.mu.Lock()
	h.Backlog, h.Workers, h.SampledAt, h.SampleErr = slices.Clone(s.backlog), s.workers, s.at, s.err
	if h.Processor.Running {
		h.judgeSamples(s, o)
	}
	if poisoned, of := s.poisoned(); poisoned >= fewPoisoned && float64(poisoned) > o.HealthMaxPoisonRate*float64(of) {
		h.because(ops.HealthReason{Code: health.PoisonRate, State: HealthDegraded,
			Detail: fmt.Sprintf("%d of %d statuses that ended within %s are poisoned", poisoned, of, poisonWindow(o))})
	}
	s.mu.Unlock()
	h.judgeProcessor()
	h.judgeFailing(s.now())
	for _, c := range h.Consumers {
		h.judgeConsumer(c, s, o)
	}
	if c := h.Cleanup; c.Overdue {
		h.because(ops.HealthReason{Code: health.Cleanup, State: HealthDegraded,
			Detail: fmt.Sprintf("cleanup is held since %s: %v", c.HeldSince.Format(time.RFC3339), c.Held)})
	}
	if err := h.Cleanup.Err; err != nil {
		h.because(ops.HealthReason{Code: health.Cleanup, State: HealthDegraded, Detail: err.Error()})
	}
	for i, r := range h.Reasons { // errors may quote data and connection strings
		of := redact.Value{Channel: r.Channel, HandlerKey: r.HandlerKey}
		h.Reasons[i].Detail = shortened(s.ib.cfg.redactor.Error(of, r.Detail))
	}
}

func (h *Health) because(r ops.HealthReason) {
	h.Reasons = append(h.Reasons, r)
	if rank(r.State) > rank(h.State) {
		h.State = r.State
	}
}

// judgeSamples judges the last sample as of its own time: what has changed since is unknown. A processor that has just
// started has had no time to make progress, and one that stands by in Exclusive mode is responsible for nothing. The
// sampler's lock is held.
func (h *Health) judgeSamples(s *sampler, o Options) {
	if s.err != nil {
		h.because(ops.HealthReason{Code: health.Database, State: HealthDegraded,
			Detail: fmt.Sprintf("the backlog cannot be read since %s: %v", s.since.Format(time.RFC3339), s.err)})
		return
	}
	if s.at.IsZero() || h.Processor.Mode == processor.ModeExclusive && !h.Processor.HoldsLock {
		return
	}
	if !s.dueSince.IsZero() {
		since := latest(s.began, s.dueSince, h.Processor.ProgressAt)
		state := HealthHealthy
		switch idle := s.at.Sub(since); {
		case idle >= o.HealthUnhealthyAfter:
			state = HealthUnhealthy
		case idle >= o.HealthDegradedAfter:
			state = HealthDegraded
		}
		if state != HealthHealthy {
			h.because(ops.HealthReason{Code: health.NoProgress, State: state,
				Detail: fmt.Sprintf("work is due and no attempt has ended since %s; %d calls are running",
					since.Format(time.RFC3339), h.Processor.Busy)})
		}
	}
	for _, b := range s.backlog {
		if o.HealthMaxDueAge == 0 || b.OldestDue.IsZero() || b.Paused ||
			s.at.Sub(latest(b.OldestDue, s.began)) < o.HealthMaxDueAge {
			continue
		}
		h.because(ops.HealthReason{Code: health.OldestDue, State: HealthDegraded, HandlerKey: b.HandlerKey,
			Detail: fmt.Sprintf("its oldest due status is due since %s", b.OldestDue.Format(time.RFC3339))})
	}
}

func latest(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}

// skewed describes a clock's skew.
func skewed(ahead time.Duration) string {
	how := "ahead of"
	if ahead < 0 {
		ahead, how = -ahead, "behind"
	}
	return fmt.Sprintf("this machine's clock is %s %s the database's: times that it stores, such as when a message was received, are wrong; synchronize the clocks", ahead.Round(time.Second), how)
}

// barred describes the roles whose sessions this worker's role cannot end.
func barred(h processor.Health) string {
	return fmt.Sprintf("workers use the database role %s, whose sessions this one's can neither see nor end: what they leave open when they are "+
		"frozen or cut off stays locked; GRANT pg_read_all_stats, pg_signal_backend TO %s", strings.Join(h.BarredRoles, ", "),
		h.DatabaseRole)
}

// judgePool reports a closed pool if any of the services has met one.
func (h *Health) judgePool() {
	problems := append(slices.Collect(maps.Values(h.Processor.Conditions)), h.SampleErr)
	for _, c := range h.Consumers {
		problems = append(problems, c.Err())
	}
	if slices.ContainsFunc(problems, store.PoolClosed) {
		h.because(ops.HealthReason{Code: health.ClosedPool, State: HealthUnhealthy,
			Detail: "the application has closed the database's pool, which never comes back: stop the inbox before closing the pool, and restart the process"})
	}
}

func (h *Health) judgeProcessor() {
	if skew := h.Processor.ClockSkew; skew != 0 {
		h.because(ops.HealthReason{Code: health.ClockSkew, State: HealthDegraded, Detail: skewed(skew)})
	}
	if len(h.Processor.BarredRoles) > 0 {
		h.because(ops.HealthReason{Code: health.BarredRole, State: HealthDegraded, Detail: barred(h.Processor)})
	}
	for _, key := range h.Processor.UnknownKeys {
		h.because(ops.HealthReason{Code: health.UnknownHandler, State: HealthDegraded, HandlerKey: key,
			Detail: "statuses are pending, and no program lists the handler: deploy it again, give the key to handler.LegacyKeys, or discard them"})
	}
	h.judgePool()
	for _, what := range slices.Sorted(maps.Keys(h.Processor.Conditions)) {
		h.because(ops.HealthReason{Code: health.Database, State: HealthDegraded,
			Detail: fmt.Sprintf("%s: %v", what, h.Processor.Conditions[what])})
	}
	for _, stuck := range []map[string]int{h.Processor.Stuck, h.InPlaceStuck} {
		for _, key := range slices.Sorted(maps.Keys(stuck)) {
			h.because(ops.HealthReason{Code: health.Stuck, State: HealthDegraded, HandlerKey: key,
				Detail: fmt.Sprintf("%d calls ignore their cancelled context", stuck[key])})
		}
	}
	for _, o := range h.longRunning {
		// The process stays ready: it does its other work, and would run the same message after a restart.
		h.because(ops.HealthReason{Code: health.LongRunning, State: HealthDegraded, HandlerKey: o.handlerKey,
			MessageIDs: o.messageIDs, Detail: o.detail})
	}
	for _, key := range h.Processor.OpenCircuits {
		h.because(ops.HealthReason{Code: health.Circuit, State: HealthDegraded, HandlerKey: key,
			Detail: "its circuit breaker is open"})
	}
	for _, channel := range slices.Sorted(maps.Keys(h.InPlaceOutages)) {
		h.because(ops.HealthReason{Code: health.Outage, State: HealthDegraded, Channel: channel,
			Detail: fmt.Sprintf("attempts cannot be made or finished: %v", h.InPlaceOutages[channel])})
	}
}

// judgeFailing reports the handlers of Inline and Direct channels that fail while their partitions wait: for each the
// message with which it has failed for longest, and how many other partitions it holds up. It is never unhealthy by
// itself: a partition that makes no progress for long is (see judgeConsumer).
func (h *Health) judgeFailing(now time.Time) {
	for _, channel := range slices.Sorted(maps.Keys(h.failing)) {
		more := map[string]int{}
		var longest []synchronous.Failing
		for _, f := range h.failing[channel] {
			if more[f.HandlerKey]++; more[f.HandlerKey] == 1 {
				longest = append(longest, f)
			}
		}
		for _, f := range longest {
			detail := fmt.Sprintf("%s/%d: %s", f.Topic, f.Partition, f.Text(now))
			if n := more[f.HandlerKey] - 1; n > 0 {
				detail = fmt.Sprintf("fails with %d other messages, too; %s", n, detail)
			}
			h.because(ops.HealthReason{Code: health.Failing, State: HealthDegraded, Channel: channel,
				HandlerKey: f.HandlerKey, Detail: detail})
		}
	}
}

// haltReasons bounds how many halted partitions of a channel have a reason of their own.
const haltReasons = 20

// judgeConsumer judges a consumer. It is unhealthy if a partition is halted, which lasts until an operator acts, or has
// made no progress for long, which may last as well. Everything else may pass by itself.
func (h *Health) judgeConsumer(c kafkaconsumer.Health, s *sampler, o Options) {
	halted := c.Halted()
	for _, p := range halted[:min(len(halted), haltReasons)] {
		h.because(ops.HealthReason{Code: health.Halted, State: HealthUnhealthy, Channel: c.Channel,
			Detail: fmt.Sprintf("%s/%d is halted before offset %d since %s: %v", p.Topic, p.Partition, p.Accepted,
				p.HaltedAt.Format(time.RFC3339), p.Halted)})
	}
	if more := len(halted) - haltReasons; more > 0 {
		h.because(ops.HealthReason{Code: health.Halted, State: HealthUnhealthy, Channel: c.Channel,
			Detail: fmt.Sprintf("%d more partitions are halted", more)})
	}
	others := c
	others.Partitions = slices.DeleteFunc(slices.Clone(c.Partitions), func(p kafkaconsumer.PartitionHealth) bool {
		return p.Halted != nil
	})
	if err := others.Err(); err != nil {
		state := HealthDegraded
		if since := h.stalledSince(others, s); !since.IsZero() && s.now().Sub(since) >= o.HealthUnhealthyAfter {
			state = HealthUnhealthy
		}
		detail := err.Error()
		if paused := s.ib.pausedSynchronous(c.Channel); len(paused) > 0 {
			detail += fmt.Sprintf("; its partitions wait for paused handlers %q", paused)
		}
		h.because(ops.HealthReason{Code: health.Consumer, State: state, Channel: c.Channel, Detail: detail})
	}
}

// stalledSince returns since when the longest stalled partition has made no progress without an excuse, and zero if
// there is none. The consumer itself excuses what keeps accepts from ending. In an Inline or Direct channel an outage
// and a paused handler are excuses, too; after their end the partition gets time to make progress.
func (h *Health) stalledSince(c kafkaconsumer.Health, s *sampler) (since time.Time) {
	var excused time.Time
	if r := s.ib.runners[c.Channel]; r != nil {
		if h.InPlaceOutages[c.Channel] != nil {
			return time.Time{}
		}
		excused = r.ExcusedUntil()
	}
	for _, p := range c.Partitions {
		if p.StalledSince.IsZero() {
			continue
		}
		if at := latest(p.StalledSince, excused); since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return since
}
