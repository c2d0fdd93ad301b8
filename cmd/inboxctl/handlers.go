package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/internal/secrets"
	"github.com/gorm-inbox/inbox/ops"
)

func newHandlers(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "handlers", Short: "Handler keys, their workers, and what they do",
		Long: `Lists the handler keys that living workers have, that are paused, or that have
pending or processing statuses. If no living worker has a key, its handler was
renamed or removed, or its process is down, and its statuses wait.

  running     a living worker is processing a status
  due         statuses are due and not claimed yet
  idle        nothing is due
  standing    work waits, or would, for what the note says
  unknown     the database did not count in time

If a table is locked or slow, a "?" stands for what the database did not count in
time. inboxctl then says where to look for the cause, and ends with code 5.

JSON: a list of ops.HandlerOverview.`,
		Example: `  inboxctl handlers`,
		Args:    noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				v, err := o.Overview(ctx)
				if err != nil {
					return err
				}
				return a.printPartly(v.Handlers, v.Incomplete, func() { writeHandlers(a.out, v.Handlers) })
			})
		},
	}
}

func writeHandlers(w io.Writer, handlers []ops.HandlerOverview) {
	t := newTable("HANDLER", ">WORKERS", "PAUSED", "STATE", ">PENDING", ">PROCESSING", ">POISONED", "NOTE")
	for _, h := range handlers {
		notes := h.Notes()
		if h.StoredOnly && !h.Paused {
			notes[0] = "has open statuses, but no living worker lists it"
		}
		t.add(h.HandlerKey, number(h.Workers), yesNo(h.Paused), h.Activity(), count(h.Pending), count(h.Processing),
			count(h.Poisoned), strings.Join(notes, "; "))
	}
	t.write(w)
}

func newHandler(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "handler HANDLER-KEY", Short: "One handler: its claims, lanes, last hours, failures, workers and settings",
		Long: `Shows what is known of a handler key.

  claims      claimed statuses, those claimed longest ago first. A claim of a dead
              worker is no running call: another worker reclaims it
  lanes       the longest lanes that wait behind poisoned statuses
  last hours  the statuses of the latest messages, by the hour in which they ended.
              The times are from acceptance to completion. It says of how many
              messages it is: completed statuses have no index by time
  failures    the largest groups, see "inboxctl failures"
  workers     the living ones that list it, with health problems that concern it:
              since when a circuit breaker is open, why, and its next probe
  settings    those of the worker that started last: message type, mode and channel,
              kind, legacy keys, batch size or TxGroup, timeout, after how many
              failures it is poisoned, and of an Inbox channel calls at once,
              retention, lanes and circuit breaker

If a table is locked or slow, what could be read is shown, with a "?" for what the
database did not count in time, and inboxctl ends with code 5.

JSON: ops.HandlerDetail.`,
		Example: `  inboxctl handler orders.mail
  inboxctl handler orders.mail --watch 5s`,
		Args: oneArg("handler key"), RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				h, err := o.Handler(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printPartly(h, h.Incomplete, func() { writeHandler(a.out, h) })
			})
		},
	}
}

func writeHandler(w io.Writer, h ops.HandlerDetail) {
	fact(w, "handler", h.HandlerKey)
	fact(w, "state", h.Activity())
	for _, note := range h.Notes() {
		fact(w, "note", note)
	}
	fact(w, "pending", fmt.Sprintf("%s, of these %s due, %s wait in lanes", h.Pending, h.Due, h.Waiting))
	if h.OldestDueAge > 0 {
		fact(w, "oldest due", age(h.OldestDueAge))
	}
	fact(w, "processing", count(h.Processing))
	fact(w, "poisoned", count(h.Poisoned))
	if h.Settings != nil {
		fact(w, "settings", h.Settings.String())
	}
	if h.SettingsDiffer {
		fact(w, "", "other workers have other settings")
	}
	section := func(title string, t *table) {
		if len(t.lines) > 1 {
			fmt.Fprintf(w, "\n%s\n", title)
			t.write(w)
		}
	}
	claims := newTable("MESSAGE", ">ATTEMPT", ">CLAIMED", "WORKER", "HOST", ">PID", "NOTE")
	for _, c := range h.Calls {
		claims.add(c.Status.MessageID, number(c.Attempt), age(c.Age), c.Status.WorkerID, c.Host, number(c.PID), c.Note(h.At))
	}
	section(fmt.Sprintf("Claims, %d of %s:", len(h.Calls), h.Processing), claims)
	lanes := newTable("FIRST POISONED", "NAMESPACE", ">POISONED", ">WAITING")
	for _, l := range h.Lanes {
		lanes.add(l.HeadMessageID, l.HeadNamespace, number(l.Poisoned), count(l.Waiting))
	}
	section("Lanes that wait behind poisoned statuses:", lanes)
	hours := newTable("FROM", "TO", ">COMPLETED", ">PER MINUTE", ">POISONED", ">FAILED ATTEMPTS", ">MEDIAN", ">95 %", ">LONGEST")
	for _, r := range h.Recent.Hours {
		if r.Completed+r.Poisoned > 0 {
			hours.add(r.From.UTC().Format(time.TimeOnly), r.To.UTC().Format(time.TimeOnly), number(r.Completed),
				fmt.Sprintf("%.1f", r.PerMinute), number(r.Poisoned), number(r.Failed), took(r.Median), took(r.P95), took(r.Longest))
		}
	}
	section("Last hours, "+h.Recent.String()+":", hours)
	if len(h.Failures) > 0 {
		fmt.Fprintln(w, "\nFailures:")
		writeFailures(w, ops.Failures{Groups: h.Failures}, h.At, false)
	}
	if len(h.WorkersListing) > 0 {
		fmt.Fprintln(w, "\nWorkers:")
		writeWorkers(w, h.WorkersListing, h.At)
		writeReasons(w, h.WorkersListing)
	}
}

// took formats the time from acceptance to completion, which is mostly short.
func took(d time.Duration) string {
	if d < time.Minute {
		return d.Round(time.Millisecond).String()
	}
	return age(d)
}

func newPause(a *app) *cobra.Command {
	cmd := newPausing(a, "paused", (*ops.Ops).Pause)
	cmd.Use, cmd.Short = "pause HANDLER-KEY...", "Pause handlers"
	cmd.Long = `Makes all workers stop claiming statuses of a handler key, each within a heartbeat.
Running handlers continue to their end. Messages of Inbox channels are still
accepted, and wait. On an Inline or Direct channel each partition waits before the
first record for the handler, with all that follows. The pause lasts until "inboxctl
resume", also across restarts.

JSON: {"results": [{"handler_key", "outcome", "error"}]}.`
	cmd.Example = `  inboxctl pause orders.mail
  inboxctl pause orders.mail orders.invoice`
	return cmd
}

func newResume(a *app) *cobra.Command {
	cmd := newPausing(a, "resumed", (*ops.Ops).Resume)
	cmd.Use, cmd.Short = "resume HANDLER-KEY...", "Resume paused handlers"
	cmd.Long = `Ends a pause. Workers claim again within a heartbeat. If a key was not paused,
nothing is done and no audit row is written. inboxctl does not know legacy keys: to
resume a renamed handler, give each key that "inboxctl handlers" shows as paused.

JSON: {"results": [{"handler_key", "outcome", "error"}]}.`
	cmd.Example = `  inboxctl resume orders.mail`
	return cmd
}

func newPausing(
	a *app, done string, do func(o *ops.Ops, ctx context.Context, actor ops.Actor, handlerKey string) error,
) *cobra.Command {
	return &cobra.Command{
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misuse("a handler key is required, \"inboxctl handlers\" lists them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				return a.pauseEach(ctx, o, done, do, args)
			})
		},
	}
}

// notPaused is the outcome for a handler key that resume finds as it is wanted.
const notPaused = "was not paused"

// pauseResult is the result for one handler key.
type pauseResult struct{ HandlerKey, Outcome, Error string }

func (a *app) pauseEach(ctx context.Context, o *ops.Ops, done string,
	do func(*ops.Ops, context.Context, ops.Actor, string) error, keys []string,
) error {
	results := struct{ Results []pauseResult }{}
	var problems []error
	for _, key := range keys {
		err, outcome := do(o, ctx, a.who(), key), done
		if errors.Is(err, ops.ErrNotPaused) { // already as wanted
			err, outcome = nil, notPaused
		}
		if err != nil {
			problems = append(problems, err)
			results.Results = append(results.Results, pauseResult{key, "not " + done, secrets.Mask(err.Error())})
			continue
		}
		results.Results = append(results.Results, pauseResult{HandlerKey: key, Outcome: outcome})
		switch {
		case a.structured():
		case outcome == notPaused:
			fmt.Fprintf(a.out, "%s %s\n", oneLine(key), outcome)
		default:
			fmt.Fprintf(a.out, "%s %s\n", outcome, oneLine(key))
		}
	}
	if a.structured() {
		if err := a.writeStructured(results); err != nil {
			return err
		}
	}
	return combineErrors(problems, len(keys)-len(problems), len(keys))
}

func newWorkers(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "workers", Short: "The processes of this inbox and their heartbeats",
		Long: `Lists the workers, the most recent heartbeat first. A worker is alive if it has not
stopped and its last heartbeat is at most 30 s old. A "silent" worker has died or
cannot reach the database. After WorkerTimeout other workers take over its claims,
and it is "released". Cleanup removes the rows of workers that are gone.

Below the table is what keeps living workers from being healthy, the worst first.

JSON: a list of ops.Worker.`,
		Example: `  inboxctl workers
  inboxctl workers -o json | jq -r '.[] | select(.alive) | .host'`,
		Args: noArgs, RunE: view(a, (*ops.Ops).Workers, func(w io.Writer, workers []ops.Worker) {
			writeWorkers(w, workers, a.now())
			writeReasons(w, workers)
		}),
	}
}

func writeWorkers(out io.Writer, workers []ops.Worker, now time.Time) {
	t := newTable("WORKER", "STATE", "HOST", ">PID", ">UP", ">HEARTBEAT", "HANDLERS").limit("HANDLERS", 80)
	t.none = "No workers: none has started, or all rows were cleaned up."
	for _, w := range workers {
		state, up := "silent", "-"
		switch {
		case w.Alive:
			state, up = "alive", ago(now, w.StartedAt)
			if len(w.Reasons) > 0 {
				state = string(w.Reasons[0].State)
			}
		case w.Stopped:
			state = "stopped"
		case w.Released:
			state = "released"
		}
		t.add(w.ID, state, w.Host, number(w.PID), up, age(w.SilentFor), strings.Join(w.HandlerKeys, ", "))
	}
	t.write(out)
}

// writeReasons lists why living workers are not healthy.
func writeReasons(w io.Writer, workers []ops.Worker) {
	blank := "\n"
	for _, worker := range workers {
		for _, r := range worker.Reasons {
			if worker.Alive {
				fmt.Fprintf(w, "%s%s  %-9s  %s\n", blank, worker.ID, r.State, oneLine(r.String()))
				blank = ""
			}
		}
	}
}

func newLocks(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "locks", Short: "Leases of cleanup, recovery, exclusive processing and publishing",
		Long: `Lists the leases: those of cleanup and of recovering claims, each of which one
worker at a time holds, in exclusive mode the lease of processing, and for each
channel that publishes copies to its dead-letter topic a lease "copies:CHANNEL".
The portions of a handler's limits for all workers are "limit:KEY:N". An expired
lease is free, but a worker's portion only once that worker is dead.

JSON: a list of ops.Lease.`,
		Example: `  inboxctl locks`,
		Args:    noArgs, RunE: view(a, (*ops.Ops).Leases, writeLeases),
	}
}

func writeLeases(w io.Writer, leases []ops.Lease) {
	t := newTable("LOCK", "OWNER", "EXPIRES")
	t.none = "No lease is held."
	for _, l := range leases {
		expires := "in " + age(l.ExpiresIn)
		if l.ExpiresIn < 0 {
			expires = "expired " + age(-l.ExpiresIn) + " ago"
		}
		t.add(l.Name, l.OwnerID, expires)
	}
	t.write(w)
}
