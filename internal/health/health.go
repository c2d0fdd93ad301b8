// Package health judges a process of an inbox, in one place. The parts of the process report facts, Judge makes reasons
// of them, and everything that shows health shows these reasons: Inbox.Health, the probes, the gauge, the log, and by
// the workers' rows also inboxctl and the dashboard. Codes are as fixed as the name of a metric (contract 11.5).
package health

import (
	"slices"
	"time"
)

// The states of a process.
const (
	Healthy   = "healthy"
	Degraded  = "degraded"
	Unhealthy = "unhealthy"
)

// The codes of reasons. The functions of the table say when each applies.
const (
	ClosedPool     = "closed_pool"
	Halted         = "halted_partition"
	Database       = "database"
	Outage         = "outage"
	NoProgress     = "no_progress"
	Consumer       = "consumer"
	Circuit        = "open_circuit"
	Stuck          = "stuck_handler"
	LongRunning    = "long_running"
	Failing        = "failing_handler"
	OldestDue      = "oldest_due_age"
	PoisonRate     = "poison_rate"
	UnknownHandler = "unknown_handler"
	BarredRole     = "barred_role"
	ClockSkew      = "clock_skew"
	Cleanup        = "cleanup"
)

// Reason is one thing that keeps a process from being healthy.
type Reason struct {
	Code string
	// Unhealthy means that it makes the process unhealthy, and not only degraded.
	Unhealthy bool
	// Channel or HandlerKey is what it concerns; empty if it concerns everything.
	Channel, HandlerKey string
	// MessageIDs name the messages whose calls do not return, the longest first.
	MessageIDs []string
	// Since is since when a circuit breaker is open, and ProbeAt when it lets the next probe through; zero for other
	// reasons, ProbeAt also while a probe is running.
	Since, ProbeAt time.Time
	// Detail is a text for operators. It may quote errors, and is neither redacted nor bounded.
	Detail string
}

// rule is a row of the table of reasons.
type rule struct {
	code string
	// unhealthy means that the reason always makes a process unhealthy. Otherwise find may find so.
	unhealthy bool
	// note describes in a few words why a handler's due statuses do not run; empty for other reasons.
	note string
	// find calls because with each Reason that applies, in an order that does not change.
	find func(f *Facts, because func(Reason))
}

// rules is the table of reasons. Of reasons with one state, those that may be the cause of others come first.
var rules = []rule{
	{ClosedPool, true, "", (*Facts).closedPool},
	{Halted, true, "", (*Facts).halts},
	{Database, false, "", (*Facts).database},
	{Outage, false, "", (*Facts).outages},
	{NoProgress, false, "", (*Facts).noProgress},
	{Consumer, false, "", (*Facts).consumers},
	{Circuit, false, "circuit breaker open", (*Facts).openCircuits},
	{Stuck, false, "calls ignore their cancelled context", (*Facts).stuckCalls},
	{LongRunning, false, "a call does not return", (*Facts).longCalls},
	{Failing, false, "fails, its partition waits", (*Facts).failingHandlers},
	{OldestDue, false, "", (*Facts).oldestDue},
	{PoisonRate, false, "", (*Facts).poisonRate},
	{UnknownHandler, false, "", (*Facts).unknownHandlers},
	{BarredRole, false, "", (*Facts).barredRoles},
	{ClockSkew, false, "", (*Facts).clockSkew},
	{Cleanup, false, "", (*Facts).cleanup},
}

// Codes returns the codes of all reasons.
func Codes() []string {
	codes := make([]string, len(rules))
	for i, r := range rules {
		codes[i] = r.code
	}
	return codes
}

// Rank returns the place of a reason in the table: of reasons with the same state, lower ones come first. A code that
// only a newer program knows comes last.
func Rank(code string) int {
	if i := slices.Index(Codes(), code); i >= 0 {
		return i
	}
	return len(rules)
}

// Note returns what a reason says in a handler's row; empty if it says nothing there.
func Note(code string) string { return append(rules, rule{})[Rank(code)].note }

// Judge returns why a process is not healthy: the worst reasons first, and of these the causes of others. Live is false
// only where a restart of the process helps. Judge reads nothing but the facts.
func Judge(f *Facts) (reasons []Reason, live bool) {
	explained := f.Busy > 0 || len(f.Errors) > 0 || len(f.Stuck) > 0
	live = true
	for _, r := range rules {
		r.find(f, func(found Reason) {
			found.Code, found.Unhealthy = r.code, found.Unhealthy || r.unhealthy
			reasons = append(reasons, found)
			if r.code == ClosedPool || r.code == NoProgress && found.Unhealthy && !explained {
				live = false
			}
		})
	}
	degraded := slices.DeleteFunc(slices.Clone(reasons), func(r Reason) bool { return r.Unhealthy })
	reasons = slices.DeleteFunc(reasons, func(r Reason) bool { return !r.Unhealthy })
	return append(reasons, degraded...), live
}
