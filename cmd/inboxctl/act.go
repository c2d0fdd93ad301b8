package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/internal/secrets"
	"github.com/gorm-inbox/inbox/ops"
)

// action has what differs between retry, discard and reschedule.
type action struct {
	verb, done string
	// states are the states that allow the action, the default first. ofMessage are the states of the statuses that a
	// message ID selects, and refused is the error if it has none.
	states, ofMessage []ops.State
	refused           error

	// one acts for a reason, which is empty for actions that have none.
	one      func(o *ops.Ops, ctx context.Context, actor ops.Actor, ref ops.Ref, reason string) error
	matching func(*ops.Ops, context.Context, ops.Actor, ops.Filter, ops.Bulk) (ops.BulkResult, error)
}

func newRetry(a *app) *cobra.Command {
	var none string
	cmd := newAction(a, &none, action{verb: "retry", done: "retried",
		one: func(o *ops.Ops, ctx context.Context, actor ops.Actor, ref ops.Ref, _ string) error {
			return o.Retry(ctx, actor, ref)
		},
		matching:  (*ops.Ops).RetryMatching,
		states:    []ops.State{ops.StatePoisoned, ops.StateFailing},
		ofMessage: []ops.State{ops.StatePoisoned, ops.StateFailing}, refused: ops.ErrNotPoisoned})
	cmd.Short = "Run poisoned and failing statuses now"
	cmd.Long = `Makes poisoned and failing statuses due now, with their error count reset. A worker
then runs their handler as for the first time. A status that fails again is poisoned
again. Other statuses cannot be retried: those that have not failed, are being
processed, wait in their lane or have ended.

` + actionHelp
	cmd.Example = actionExamples("retry") + "\n" + `  inboxctl retry --matching --handler orders.mail --state poisoned,failing`
	return cmd
}

func newDiscard(a *app) *cobra.Command {
	var reason string
	cmd := newAction(a, &reason, action{verb: "discard", done: "discarded", one: (*ops.Ops).Discard,
		matching:  (*ops.Ops).DiscardMatching,
		states:    []ops.State{ops.StatePoisoned, ops.StateFailing, ops.StatePending},
		ofMessage: []ops.State{ops.StatePoisoned}, refused: ops.ErrNotPoisoned})
	cmd.Flags().StringVar(&reason, "reason", "", "why, at most 500 characters, for the audit")
	cmd.Short = "Give up statuses permanently, without running their handler"
	cmd.Long = `Gives up statuses permanently: their handler will not run for these messages any
more. This cannot be undone. The statuses stay stored, so that a redelivery is
still a duplicate, and are cleaned up like completed ones. The next message in
their lane can run.

Poisoned, failing and pending statuses can be discarded, also those that wait in
their lane, and those of a handler that no program has any more. One that a worker
is processing is left alone. --matching and message IDs take only poisoned statuses
unless --state names others, with --matching. "pending" includes what is failing or
waiting. To discard all that is pending of a running handler, pause it first.

` + actionHelp
	cmd.Example = actionExamples("discard") + `
  inboxctl discard order-7f9c2ba4 --reason 'the customer has cancelled'
  inboxctl discard --matching --handler removed.handler --state pending --dry-run`
	return cmd
}

func newReschedule(a *app) *cobra.Command {
	var none, text string
	var at time.Time
	cmd := newAction(a, &none, action{verb: "reschedule", done: "rescheduled",
		one: func(o *ops.Ops, ctx context.Context, actor ops.Actor, ref ops.Ref, _ string) error {
			return o.Reschedule(ctx, actor, ref, at)
		},
		matching: func(o *ops.Ops, ctx context.Context, actor ops.Actor, filter ops.Filter, bulk ops.Bulk) (
			ops.BulkResult, error,
		) {
			bulk.NotBefore = at
			return o.RescheduleMatching(ctx, actor, filter, bulk)
		},
		states:    []ops.State{ops.StatePending, ops.StateFailing},
		ofMessage: []ops.State{ops.StatePending, ops.StateFailing}, refused: ops.ErrNotPending})
	cmd.Flags().StringVar(&text, "at", "", "now, a time such as 2026-01-02T03:04:05Z, or how long from now: 90m, 24h, 7d")
	act := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if text == "" {
			return misuse("--at is missing: when are they due?")
		}
		if text != "now" {
			if at, err = when("at", text, a.now(), 1); err != nil {
				return err
			}
		}
		return act(cmd, args)
	}
	cmd.Short = "Change when pending statuses are due"
	cmd.Long = `Changes when pending statuses are due: those that wait for their time ("not
before"), for their next attempt or for a worker. "--at now" runs them at once.
Nothing else changes: what has failed keeps its errors, which "inboxctl retry"
resets, and in its lane a status keeps its place. Statuses that are poisoned or
being processed cannot be rescheduled. A worker may find an earlier time only with
its next poll, within 30 s by default.

` + actionHelp
	cmd.Example = `  inboxctl reschedule 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11 --at now
  inboxctl reschedule order-7f9c2ba4 --at 2026-03-01T08:00:00Z
  inboxctl reschedule --matching --handler orders.mail --at 2h --dry-run`
	return cmd
}

const actionHelp = `Give the IDs of statuses, which "inboxctl list" shows. With ID@VERSION nothing is
done if the status has changed since that version. A message ID stands for the
statuses of all its handlers that allow it; inboxctl shows them and asks for
confirmation, unless --yes is given.

Or select all statuses that match filters with --matching. inboxctl then counts
them and asks for confirmation, unless --yes is given. --dry-run only counts. It
works in chunks of --chunk statuses, each in a transaction with an audit row, and
prints its progress. Ctrl-C stops it after the current chunk, and it prints what is
done. A second Ctrl-C ends inboxctl at once. To continue, run the same command
again. Statuses that someone else changes meanwhile are counted as skipped.

Messages received after the count are excluded unless --to says otherwise. No more
statuses are changed than were counted, unless there were too many to count. If
more match by then, inboxctl says so.

JSON: {"results": [{"status_id", "outcome", "error"}]}; with --matching an
ops.BulkResult with "dry_run", "stopped" and "error".`

func actionExamples(verb string) string {
	return strings.ReplaceAll(`  inboxctl VERB 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11
  inboxctl VERB order-7f9c2ba4 --yes
  inboxctl VERB --matching --handler orders.mail --dry-run
  inboxctl VERB --matching --fingerprint 3f1c…
  inboxctl VERB --matching --error 'connection refused' --from 2h --yes`, "VERB", verb)
}

// newAction makes the command of an action. reason is read when the command runs.
func newAction(a *app, reason *string, act action) *cobra.Command {
	var (
		filters  filterFlags
		when     pageFlags
		bulk     bulkFlags
		matching bool
	)
	cmd := &cobra.Command{
		Use: act.verb + " [STATUS-ID[@VERSION]|MESSAGE-ID]...",
		RunE: func(cmd *cobra.Command, args []string) error {
			if matching {
				in, err := when.period(a.now())
				if err != nil {
					return err
				}
				return a.actOnMatching(cmd, act, args, filters.filter(in), *reason, &bulk)
			}
			bulkOnly := append([]string{"dry-run", "chunk", "state"}, statusFilters...)
			bulkOnly = slices.DeleteFunc(bulkOnly, func(name string) bool { return name == "namespace" })
			if given := changed(cmd, bulkOnly); len(given) > 0 {
				return misuse("%s is only for --matching", given[0])
			}
			named, err := parseTargets(args)
			if err != nil {
				return err
			}
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				return a.actOnNamed(ctx, o, act, named, filters.namespace, *reason, bulk.yes)
			})
		},
	}
	cmd.Flags().BoolVar(&matching, "matching", false, "all statuses that match the filters, of the states that --state names")
	filters.bind(cmd)
	filters.bindStates(cmd, act.states...)
	cmd.Flags().Lookup("state").Usage = "with --matching: " + joinedStates(act.states, ", ") +
		"; may be repeated (default " + string(act.states[0]) + ")"
	when.bindPeriod(cmd, receivedWhen)
	bulk.bind(cmd)
	return cmd
}

func joinedStates(states []ops.State, separator string) string {
	return strings.Join(texts[string](states), separator)
}

// target is what an argument names: a status or, as it may be both, a message.
type target struct {
	arg string
	ops.Ref
	// messageID is empty if the argument has a version, and so names a status.
	messageID string
}

func parseTargets(args []string) ([]target, error) {
	if len(args) == 0 {
		return nil, misuse("give status IDs or message IDs, or --matching and filters")
	}
	targets := make([]target, len(args))
	for i, arg := range args {
		targets[i] = target{arg: arg, messageID: arg}
		id, version, given := strings.Cut(arg, "@")
		if uuid.Validate(id) != nil {
			continue
		}
		targets[i].StatusID = id
		if !given {
			continue
		}
		n, err := strconv.ParseInt(version, 10, 64)
		if err != nil || n < 1 {
			return nil, misuse("%q: the part after @ is not a version", arg)
		}
		targets[i].Version, targets[i].messageID = n, ""
	}
	return targets, nil
}

// actResult is the result for one status.
type actResult struct{ StatusID, Outcome, Error string }

// actOnNamed acts on the statuses that the arguments name, after a confirmation if messages are among them. It
// continues after a status that is refused, and stops at an error that every further status would get, too.
func (a *app) actOnNamed(
	ctx context.Context, o *ops.Ops, act action, named []target, namespace, reason string, yes bool,
) error {
	results := struct{ Results []actResult }{}
	var problems []error
	refused := func(what string, err error) {
		problems = append(problems, err)
		results.Results = append(results.Results, actResult{what, "not " + act.done, secrets.Mask(err.Error())})
	}
	var refs []ops.Ref
	var ofMessages []ops.Status
	for _, each := range named {
		statuses, err := a.statusesOf(ctx, o, act, each, namespace)
		switch {
		case err != nil && exitCode(err) == exitFailed:
			return err
		case err != nil:
			refused(each.arg, err)
		case len(statuses) == 0:
			refs = append(refs, each.Ref)
		}
		for _, s := range statuses {
			refs = append(refs, s.Ref())
		}
		ofMessages = append(ofMessages, statuses...)
	}
	unresolved := len(problems)
	if len(ofMessages) > 0 && !yes {
		for _, s := range ofMessages {
			a.say("%s of message %s: %s, %s", oneLine(s.HandlerKey), oneLine(s.MessageID), stateName(s, a.now()),
				cut(oneLine(s.LastError), errorColumns))
		}
		if err := a.agree(ctx, fmt.Sprintf("%s %d statuses", act.verb, len(refs))); err != nil {
			return err
		}
	}
	done := 0
	for _, ref := range refs {
		err := ctx.Err()
		if err == nil {
			err = act.one(o, ctx, a.who(), ref, reason)
		}
		if err != nil {
			if refused(ref.StatusID, err); exitCode(err) == exitFailed {
				break
			}
			continue
		}
		done++
		results.Results = append(results.Results, actResult{StatusID: ref.StatusID, Outcome: act.done})
		if !a.structured() {
			fmt.Fprintf(a.out, "%s %s\n", act.done, oneLine(ref.StatusID))
		}
	}
	if a.structured() {
		if err := a.writeStructured(results); err != nil {
			return err
		}
	}
	return combineErrors(problems, done, unresolved+len(refs))
}

// statusesOf returns the statuses of the message that an argument names which allow the action. It returns none if no
// message has that ID and the argument may name a status.
func (a *app) statusesOf(
	ctx context.Context, o *ops.Ops, act action, named target, namespace string,
) ([]ops.Status, error) {
	if named.messageID == "" {
		return nil, nil
	}
	page, err := o.List(ctx, ops.Filter{MessageID: named.messageID, Namespace: namespace}, "", ops.MaxLimit)
	switch {
	case err != nil:
		return nil, err
	case len(page.Items) == 0 && named.StatusID != "":
		return nil, nil
	case len(page.Items) == 0:
		return nil, fmt.Errorf("%.200q: %w: it is the ID of neither a status nor a message with handlers", named.messageID,
			ops.ErrNotFound)
	}
	first := page.Items[0].Namespace
	for _, s := range page.Items {
		if s.Namespace != first {
			return nil, fmt.Errorf("message %q: %w: name one with --namespace: %q or %q", named.messageID, ops.ErrAmbiguous,
				first, s.Namespace)
		}
	}
	able := slices.DeleteFunc(page.Items, func(s ops.Status) bool {
		return !slices.Contains(act.ofMessage, s.State) &&
			(!s.Failing || s.Waiting || !slices.Contains(act.ofMessage, ops.StateFailing))
	})
	if len(able) == 0 {
		return nil, fmt.Errorf("message %q: %w: none of its statuses is %s", named.messageID, act.refused,
			joinedStates(act.ofMessage, " or "))
	}
	return able, nil
}

// combineErrors combines the errors of several actions, some of which failed.
func combineErrors(problems []error, done, all int) error {
	if len(problems) == 0 {
		return nil
	}
	if all == 1 {
		return problems[0]
	}
	code := exitCode(problems[0])
	switch {
	case done > 0:
		code = exitPartly
	case slices.ContainsFunc(problems, func(problem error) bool { return exitCode(problem) != code }):
		code = exitFailed
	}
	return &codedError{code, errors.Join(append(problems, fmt.Errorf("%d of %d done", done, all))...)}
}

// defaultChunk is how many statuses are changed in one transaction.
const defaultChunk = 200

type bulkFlags struct {
	dryRun, yes bool
	chunk       int
}

func (b *bulkFlags) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&b.dryRun, "dry-run", false, "with --matching: only count")
	cmd.Flags().BoolVarP(&b.yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().IntVar(&b.chunk, "chunk", defaultChunk, "with --matching: how many statuses per transaction, 1 to 1000")
}

// bulkReport is the JSON output of an action on all that match.
type bulkReport struct {
	DryRun bool
	ops.BulkResult
	// Stopped is true if the action was interrupted.
	Stopped bool
	Error   string
}

func (a *app) actOnMatching(
	cmd *cobra.Command, act action, args []string, filter ops.Filter, reason string, bulk *bulkFlags,
) error {
	switch {
	case len(args) > 0:
		return misuse("use either status IDs or --matching, not both")
	case len(changed(cmd, statusFilters)) == 0:
		return misuse("--matching requires a filter; to select everything, give each --handler")
	case bulk.chunk < 1 || bulk.chunk > ops.MaxLimit:
		return misuse("--chunk = %d: must be 1 to %d", bulk.chunk, ops.MaxLimit)
	}
	if len(filter.States) == 0 {
		filter.States = act.states[:1]
	}
	return a.actOnAll(cmd, bulk, bulkAction{verb: act.verb, done: act.done,
		what: fmt.Sprintf("Statuses that match (%s)", joinedStates(filter.States, ", ")),
		run: func(ctx context.Context, o *ops.Ops, bulk ops.Bulk) (ops.BulkResult, error) {
			if err := untilNow(ctx, o, filter.From, &filter.To); err != nil {
				return ops.BulkResult{}, err
			}
			bulk.Reason = reason
			return act.matching(o, ctx, a.who(), filter, bulk)
		}})
}

// untilNow ends a period without an end now. What comes later was neither counted nor seen.
func untilNow(ctx context.Context, o *ops.Ops, from time.Time, to *time.Time) error {
	now, err := o.Now(ctx)
	if err == nil && to.IsZero() && from.Before(now) {
		*to = now
	}
	return err
}

// bulkAction is an action on all that match a filter. what names them.
type bulkAction struct {
	verb, done, what string
	run              func(ctx context.Context, o *ops.Ops, bulk ops.Bulk) (ops.BulkResult, error)
}

// actOnAll counts what matches, asks for confirmation and acts.
func (a *app) actOnAll(cmd *cobra.Command, bulk *bulkFlags, act bulkAction) error {
	return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
		counted, err := act.run(ctx, o, ops.Bulk{DryRun: true})
		if err != nil {
			return err
		}
		matched := counted.Matched
		a.say("%s: %s", act.what, count(matched))
		if bulk.dryRun || matched == (ops.Count{}) {
			if a.structured() {
				return a.writeStructured(bulkReport{DryRun: bulk.dryRun, BulkResult: counted})
			}
			return nil
		}
		if !bulk.yes {
			if err := a.agree(ctx, act.verb+" them"); err != nil {
				return err
			}
		}
		return a.runBulk(ctx, o, act, bulk, matched)
	})
}

func (a *app) runBulk(ctx context.Context, o *ops.Ops, act bulkAction, bulk *bulkFlags, matched ops.Count) error {
	chunks, end := a.betweenChunks(ctx, a.stepTimeout())
	defer end()
	limit := matched.N
	if matched.Capped {
		limit = 0
	}
	result, err := act.run(chunks, o, ops.Bulk{ChunkSize: bulk.chunk, Max: limit, Progress: func(r ops.BulkResult) {
		if matched.Capped || r.Done+r.Skipped < matched.N { // the result says the same of the last chunk
			a.say("%s %d of %s, skipped %d", act.done, r.Done, count(matched), r.Skipped)
		}
		if ctx.Err() != nil {
			end()
		}
	}})
	result.Matched = matched
	report := bulkReport{BulkResult: result, Stopped: err != nil && ctx.Err() != nil}
	if err != nil {
		report.Error = secrets.Mask(err.Error())
	}
	if printed := a.print(report, func() {
		fmt.Fprintf(a.out, "%s %d, skipped %d\n", act.done, result.Done, result.Skipped)
	}); printed != nil {
		return errors.Join(err, printed)
	}
	if result.More {
		a.say("More match now than were counted. Those were not changed. Run the same command again to include them.")
	}
	if report.Stopped {
		err = fmt.Errorf("stopped: %d of %s %s; run the same command to continue", result.Done, count(matched), act.done)
	}
	if err != nil && result.Done > 0 {
		err = &codedError{exitPartly, err}
	}
	return err
}

// betweenChunks returns a context that outlasts ctx until end is called at the end of a chunk. So an interrupt lets the
// running chunk finish and be counted. A chunk that takes longer than the limit is cancelled and rolled back.
func (a *app) betweenChunks(ctx context.Context, limit time.Duration) (chunks context.Context, end func()) {
	chunks, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		a.say("Stopping after the current chunk. Press Ctrl-C again to end inboxctl at once.")
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-chunks.Done():
		}
	})
	return chunks, sync.OnceFunc(func() {
		cancel()
		if !stop() {
			<-ended
		}
	})
}

// who returns the actor of an action.
func (a *app) who() ops.Actor { return ops.Actor(a.actor) }

// checkActor validates the actor. It runs before anything is audited and before the operator is asked to confirm.
func (a *app) checkActor() error {
	if strings.TrimSpace(a.actor) == "" {
		return misuse("no actor: this is audited, so give your name with --actor or %s", actorVariable)
	}
	if n := utf8.RuneCountInString(a.actor); n > maxActor {
		return misuse("the actor has %d characters: must be 1 to %d", n, maxActor)
	}
	return nil
}

// maxActor is the longest name that the audit stores.
const maxActor = 200

// defaultActor returns the operating system's user at the machine's name.
func defaultActor(getenv func(string) string) string {
	name := getenv("USER")
	if current, err := user.Current(); err == nil && current.Username != "" {
		name = current.Username
	}
	if name == "" {
		return "" // a machine's name alone does not identify a person
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		name += "@" + host
	}
	return name
}

// agree asks the operator to type yes. The question goes on with the actor's name.
func (a *app) agree(ctx context.Context, question string) error {
	return a.confirm(ctx, fmt.Sprintf("%s as %s? Type yes: ", question, oneLine(a.actor)), "yes")
}

// confirm asks on standard error and reads a line. Any other answer than the wanted one returns errNotConfirmed, and so
// does the end of the input. A script without --yes therefore does nothing.
func (a *app) confirm(ctx context.Context, question, wanted string) error {
	fmt.Fprint(a.errOut, question)
	answered := make(chan error, 1)
	// The goroutine may last until the process ends, because a read from a terminal cannot be cancelled.
	go func() {
		answer, err := bufio.NewReader(a.in).ReadString('\n')
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			answered <- fmt.Errorf("read the answer: %w", err)
		case strings.TrimSuffix(strings.TrimSuffix(answer, "\n"), "\r") != wanted:
			answered <- errNotConfirmed
		default:
			answered <- nil
		}
	}()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		fmt.Fprintln(a.errOut)
		return fmt.Errorf("%w: %w", errNotConfirmed, ctx.Err())
	}
}
