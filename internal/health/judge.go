package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
)

const (
	// MaxHalts bounds how many halted partitions of a channel have their own reason.
	MaxHalts = 20
	// fewPoisoned is how many poisoned statuses it takes to judge their rate: poisoning is meant for single bad messages.
	fewPoisoned = 10
	// maxMessageIDs bounds the message IDs of a reason.
	maxMessageIDs = 10
)

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// closedPool applies once any service has met the closed pool.
func (f *Facts) closedPool(because func(Reason)) {
	problems := append(slices.Collect(maps.Values(f.Errors)), f.Sample.Err)
	for _, c := range f.Consumers {
		problems = append(problems, c.Err)
	}
	if slices.ContainsFunc(problems, store.PoolClosed) {
		because(Reason{Detail: "the application has closed the database's pool, which never comes back: stop the inbox before closing the pool, and restart the process"})
	}
}

// halts apply until an operator acts.
func (f *Facts) halts(because func(Reason)) {
	for _, c := range f.Consumers {
		for _, err := range c.Halted {
			because(Reason{Channel: c.Name, Detail: err.Error()})
		}
		if more := c.Halts - len(c.Halted); more > 0 {
			because(Reason{Channel: c.Name, Detail: fmt.Sprintf("%d more partitions are halted", more)})
		}
	}
}

// database applies while the last sample failed, and for each lasting error of the processor.
func (f *Facts) database(because func(Reason)) {
	if s := f.Sample; f.Running && s.Err != nil {
		because(Reason{Detail: fmt.Sprintf("the backlog cannot be read since %s: %v", s.ErrSince.Format(time.RFC3339), s.Err)})
	}
	for _, what := range slices.Sorted(maps.Keys(f.Errors)) {
		because(Reason{Detail: fmt.Sprintf("%s: %v", what, f.Errors[what])})
	}
}

// outages apply while attempts of an Inline or Direct channel cannot be made or finished.
func (f *Facts) outages(because func(Reason)) {
	for _, channel := range slices.Sorted(maps.Keys(f.Synchronous)) {
		if err := f.Synchronous[channel].Outage; err != nil {
			because(Reason{Channel: channel, Detail: fmt.Sprintf("attempts cannot be made or finished: %v", err)})
		}
	}
}

// backlog returns the last sample, which is judged as of its own time: later changes are unknown. It is empty if this
// process is responsible for nothing, or cannot know which statuses are due.
func (f *Facts) backlog() Sample {
	if !f.Running || f.Standby || f.Sample.Err != nil || f.Sample.At.IsZero() {
		return Sample{}
	}
	return f.Sample
}

// noProgress applies once work has been due for DegradedAfter without the end of an attempt. A processor that has just
// started has had no time for one.
func (f *Facts) noProgress(because func(Reason)) {
	s := f.backlog()
	since := latest(s.Began, s.DueSince, f.ProgressAt)
	idle := s.At.Sub(since)
	if s.DueSince.IsZero() || idle < f.Limits.DegradedAfter {
		return
	}
	because(Reason{Unhealthy: idle >= f.Limits.UnhealthyAfter, Detail: fmt.Sprintf(
		"work is due and no attempt has ended since %s; %d calls are running", since.Format(time.RFC3339), f.Busy)})
}

// consumers applies for a channel that does not consume for another reason than a halt. It makes the process unhealthy
// once a partition has made no progress for UnhealthyAfter, which may last. Everything else may pass by itself.
func (f *Facts) consumers(because func(Reason)) {
	for _, c := range f.Consumers {
		if c.Err == nil {
			continue
		}
		since := f.stalledSince(c)
		r := Reason{Channel: c.Name, Detail: c.Err.Error(),
			Unhealthy: !since.IsZero() && f.Now.Sub(since) >= f.Limits.UnhealthyAfter}
		if paused := f.Synchronous[c.Name].Paused; len(paused) > 0 {
			r.Detail += fmt.Sprintf("; its partitions wait for paused handlers %q", paused)
		}
		because(r)
	}
}

// stalledSince returns since when the longest stalled partition has made no progress without an excuse, and zero if
// there is none. The consumer itself excuses accepts that cannot end. In an Inline or Direct channel an outage and a
// paused handler are excuses, too; after their end the partition gets time to make progress.
func (f *Facts) stalledSince(c Channel) (since time.Time) {
	excuse := f.Synchronous[c.Name]
	if excuse.Outage != nil {
		return time.Time{}
	}
	for _, stalled := range c.Stalled {
		if at := latest(stalled, excuse.ExcusedUntil); since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return since
}

// openCircuits apply while a breaker is open, or has a probe running.
func (f *Facts) openCircuits(because func(Reason)) {
	for _, c := range f.OpenCircuits {
		next := "a probe is running"
		if !c.ProbeAt.IsZero() {
			next = "the next probe is at " + c.ProbeAt.Format(time.RFC3339)
		}
		because(Reason{HandlerKey: c.HandlerKey, Since: c.Since, ProbeAt: c.ProbeAt, Detail: fmt.Sprintf(
			"its circuit breaker is open since %s, %s; last failure: %v", c.Since.Format(time.RFC3339), next, c.Err)})
	}
}

// stuckCalls apply while calls of a handler ignore their cancelled context.
func (f *Facts) stuckCalls(because func(Reason)) {
	for _, key := range slices.Sorted(maps.Keys(f.Stuck)) {
		because(Reason{HandlerKey: key, Detail: fmt.Sprintf("%d calls ignore their cancelled context", f.Stuck[key])})
	}
}

// longCalls applies for handlers with calls that have run for LongRunning and for longer than their timeout. The
// process stays ready: it does its other work, and would run the same message after a restart.
func (f *Facts) longCalls(because func(Reason)) {
	late := map[string][]Call{}
	var keys []string
	for _, c := range f.Calls {
		if f.Limits.LongRunning == 0 || f.Now.Sub(c.Since) < max(f.Limits.LongRunning, c.Timeout) {
			continue
		}
		if late[c.HandlerKey] == nil {
			keys = append(keys, c.HandlerKey)
		}
		late[c.HandlerKey] = append(late[c.HandlerKey], c)
	}
	for _, key := range keys {
		r := Reason{HandlerKey: key, Detail: f.describe(late[key])}
		for _, c := range late[key] {
			r.MessageIDs = append(r.MessageIDs, c.MessageIDs...)
		}
		r.MessageIDs = r.MessageIDs[:min(len(r.MessageIDs), maxMessageIDs)]
		because(r)
	}
}

// describe describes the longest of a handler's calls, and what to do about it.
func (f *Facts) describe(calls []Call) string {
	longest := calls[0]
	text := fmt.Sprintf("a call with message %q", longest.MessageIDs[0])
	if more := len(longest.MessageIDs) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	text += fmt.Sprintf(" has not returned for %s, since %s", InWords(f.Now.Sub(longest.Since).Round(time.Second)),
		longest.Since.Format(time.RFC3339))
	if f.WorkerID != "" {
		text += ", in worker " + f.WorkerID
	}
	if more := len(calls) - 1; more > 0 {
		text += fmt.Sprintf(", nor have %d other calls", more)
	}
	if longest.Timeout > 0 {
		return text + fmt.Sprintf("; its timeout of %s is over: find where its goroutine waits, and have it obey its context",
			InWords(longest.Timeout))
	}
	return text + "; it has no timeout: find where its goroutine waits, and set HandlerTimeout or its own Timeout"
}

// failingHandlers names for each handler the message with which it has failed for longest. A partition that makes no
// progress because of it for long is unhealthy as that, see consumers.
func (f *Facts) failingHandlers(because func(Reason)) {
	for _, channel := range slices.Sorted(maps.Keys(f.Synchronous)) {
		failing := f.Synchronous[channel].Failing
		messages := map[string]int{}
		for _, h := range failing {
			messages[h.HandlerKey]++
		}
		for _, h := range failing {
			n := messages[h.HandlerKey]
			if n == 0 {
				continue
			}
			detail := fmt.Sprintf("%s/%d: %s", h.Topic, h.Partition, h.Text(f.Now))
			if n > 1 {
				detail = fmt.Sprintf("fails with %d other messages, too; %s", n-1, detail)
			}
			because(Reason{Channel: channel, HandlerKey: h.HandlerKey, Detail: detail})
			messages[h.HandlerKey] = 0
		}
	}
}

// oldestDue applies for handlers whose oldest status is due for MaxDueAge, once this process has run that long. A
// paused handler's statuses are never too old.
func (f *Facts) oldestDue(because func(Reason)) {
	s := f.backlog()
	for _, h := range s.Handlers {
		if f.Limits.MaxDueAge == 0 || h.OldestDue.IsZero() || h.Paused ||
			s.At.Sub(latest(h.OldestDue, s.Began)) < f.Limits.MaxDueAge {
			continue
		}
		because(Reason{HandlerKey: h.HandlerKey,
			Detail: "its oldest due status is due since " + h.OldestDue.Format(time.RFC3339)})
	}
}

// poisonRate applies while more than MaxPoisonRate of the statuses that end are poisoned.
func (f *Facts) poisonRate(because func(Reason)) {
	if f.Poisoned >= fewPoisoned && float64(f.Poisoned) > f.Limits.MaxPoisonRate*float64(f.Ended) {
		because(Reason{Detail: fmt.Sprintf("%d of %d statuses that ended within %s are poisoned", f.Poisoned, f.Ended,
			InWords(f.Limits.PoisonWindow))})
	}
}

// unknownHandlers apply while statuses are pending of a handler that no program lists.
func (f *Facts) unknownHandlers(because func(Reason)) {
	for _, key := range f.UnknownKeys {
		because(Reason{HandlerKey: key, Detail: "statuses are pending, and no program lists the handler: deploy it again, give the key to handler.LegacyKeys, or discard them"})
	}
}

// barredRoles applies while other workers use such a role.
func (f *Facts) barredRoles(because func(Reason)) {
	if len(f.BarredRoles) > 0 {
		because(Reason{Detail: fmt.Sprintf("workers use the database role %s, whose sessions this one's can neither see nor end: "+
			"what they leave open when they are frozen or cut off stays locked; GRANT pg_read_all_stats, pg_signal_backend TO %s",
			strings.Join(f.BarredRoles, ", "), f.Role)})
	}
}

// clockSkew applies while the clocks differ by too much.
func (f *Facts) clockSkew(because func(Reason)) {
	how := "ahead of"
	if f.ClockAhead < 0 {
		how = "behind"
	}
	if f.ClockAhead != 0 {
		because(Reason{Detail: fmt.Sprintf("this machine's clock is %s %s the database's: times that it stores, such as when a message was received, are wrong; synchronize the clocks",
			InWords(f.ClockAhead.Abs().Round(time.Second)), how)})
	}
}

// cleanup applies while it waits too long for a partition, and while it fails.
func (f *Facts) cleanup(because func(Reason)) {
	if f.CleanupHeld != nil {
		because(Reason{Detail: fmt.Sprintf("cleanup is held since %s: %v", f.CleanupHeldSince.Format(time.RFC3339), f.CleanupHeld)})
	}
	if f.CleanupErr != nil {
		because(Reason{Detail: f.CleanupErr.Error()})
	}
}
