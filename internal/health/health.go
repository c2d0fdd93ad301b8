// Package health judges a process of an inbox, in one place. The parts of the process report facts, Judge makes reasons
// of them, and everything that shows health shows these reasons: Inbox.Health, the probes, the gauge, the log, and by
// the workers' rows also inboxctl and the dashboard. Codes are as fixed as the name of a metric (contract 11.5).
package health

import (
	"cmp"
	"slices"
)

// The codes of reasons.
const (
	// ClosedPool means that the application has closed the database's pool.
	ClosedPool = "closed_pool"
	// Halted means that no member consumes a partition because it is halted.
	Halted = "halted_partition"
	// Database means that the backlog cannot be read, or an error of the processor lasts.
	Database = "database"
	// Outage means that attempts of an Inline or Direct channel cannot be made or finished.
	Outage = "outage"
	// NoProgress means that work is due and no attempt ends in this process.
	NoProgress = "no_progress"
	// Consumer means that something else keeps a channel from consuming.
	Consumer = "consumer"
	// Circuit means that a handler's circuit breaker is open.
	Circuit = "open_circuit"
	// Stuck means that calls of a handler ignore their cancelled context.
	Stuck = "stuck_handler"
	// LongRunning means that a call of a handler has not returned for the option LongRunning.
	LongRunning = "long_running"
	// Failing means that a handler of an Inline or Direct channel fails and is retried, while its partition waits.
	Failing = "failing_handler"
	// OldestDue means that a status has been due for longer than HealthMaxDueAge.
	OldestDue = "oldest_due_age"
	// PoisonRate means that too much of what ends is poisoned.
	PoisonRate = "poison_rate"
	// UnknownHandler means that statuses are pending of a handler key that no program lists.
	UnknownHandler = "unknown_handler"
	// BarredRole means that another worker's database role is one whose sessions this worker's can neither see
	// nor end.
	BarredRole = "barred_role"
	// ClockSkew means that this machine's clock is not the database's.
	ClockSkew = "clock_skew"
	// Cleanup means that cleanup fails, or is far behind because a partition is.
	Cleanup = "cleanup"
)

// State is the state of a process, or what one reason makes of it.
type State int

// The states, from good to bad, with the numbers that the gauge shows.
const (
	Healthy State = iota
	Degraded
	Unhealthy
)

func (s State) String() string { return [...]string{"healthy", "degraded", "unhealthy"}[s] }

// Reason is one thing that keeps a process from being healthy.
type Reason struct {
	Code  string
	State State
	// Channel or HandlerKey is what it concerns; empty if it concerns everything.
	Channel, HandlerKey string
	// MessageIDs are those of calls that do not return, the longest first.
	MessageIDs []string
	// Detail is a text for operators. It may quote errors, and is neither redacted nor bounded.
	Detail string
}

// rule is a row of the table of reasons.
type rule struct {
	code string
	// state is what the reason makes of a process. find may find it worse.
	state State
	// note describes in a few words what keeps a handler's due statuses from running; empty for other reasons.
	note string
	// find calls because with a Reason for each thing that is so, in an order that does not change.
	find func(f *Facts, because func(Reason))
}

// rules is the table of reasons. Of reasons with one state, those that may be the cause of others come first.
var rules = []rule{
	{ClosedPool, Unhealthy, "", (*Facts).closedPool},
	{Halted, Unhealthy, "", (*Facts).halts},
	{Database, Degraded, "", (*Facts).database},
	{Outage, Degraded, "", (*Facts).outages},
	{NoProgress, Degraded, "", (*Facts).noProgress},
	{Consumer, Degraded, "", (*Facts).consumers},
	{Circuit, Degraded, "circuit breaker open", (*Facts).openCircuits},
	{Stuck, Degraded, "calls ignore their cancelled context", (*Facts).stuckCalls},
	{LongRunning, Degraded, "a call does not return", (*Facts).longCalls},
	{Failing, Degraded, "fails, its partition waits", (*Facts).failingHandlers},
	{OldestDue, Degraded, "", (*Facts).oldestDue},
	{PoisonRate, Degraded, "", (*Facts).poisonRate},
	{UnknownHandler, Degraded, "", (*Facts).unknownHandlers},
	{BarredRole, Degraded, "", (*Facts).barredRoles},
	{ClockSkew, Degraded, "", (*Facts).clockSkew},
	{Cleanup, Degraded, "", (*Facts).cleanup},
}

// Codes returns the codes of all reasons.
func Codes() []string {
	codes := make([]string, len(rules))
	for i, r := range rules {
		codes[i] = r.code
	}
	return codes
}

// Note returns what a reason says in a handler's row; empty if it says nothing there.
func Note(code string) string {
	if i := slices.IndexFunc(rules, func(r rule) bool { return r.code == code }); i >= 0 {
		return rules[i].note
	}
	return ""
}

// Compare orders two reasons: unhealthy ones first, then by the table. A code that this program does not know, which a
// newer one has stored, comes last of its state.
func Compare(codeA string, unhealthyA bool, codeB string, unhealthyB bool) int {
	place := func(code string, unhealthy bool) int {
		i := slices.Index(Codes(), code)
		if i < 0 {
			i = len(rules)
		}
		if !unhealthy {
			i += len(rules) + 1
		}
		return i
	}
	return cmp.Compare(place(codeA, unhealthyA), place(codeB, unhealthyB))
}

// Verdict is what Judge makes of the facts.
type Verdict struct {
	// State is that of the worst reason, and Reasons are ordered by Compare.
	State   State
	Reasons []Reason
	// Live is false only where a restart of the process helps.
	Live bool
}

// Judge returns the state of a process and its reasons. It reads nothing but the facts.
func Judge(f *Facts) Verdict {
	var v Verdict
	for _, r := range rules {
		r.find(f, func(found Reason) {
			found.Code, found.State = r.code, max(found.State, r.state)
			v.Reasons = append(v.Reasons, found)
			v.State = max(v.State, found.State)
		})
	}
	slices.SortStableFunc(v.Reasons, func(a, b Reason) int { return cmp.Compare(b.State, a.State) })
	explained := f.Busy > 0 || len(f.Errors) > 0 || len(f.Stuck) > 0
	v.Live = !slices.ContainsFunc(v.Reasons, func(r Reason) bool {
		return r.Code == ClosedPool || r.Code == NoProgress && r.State == Unhealthy && !explained
	})
	return v
}
