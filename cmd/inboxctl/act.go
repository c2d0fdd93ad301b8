package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/internal/secrets"
	"github.com/gorm-inbox/inbox/ops"
)

// action has what differs between retry and discard.
type action struct {
	verb, done string
	one        func(o *ops.Ops, ctx context.Context, actor ops.Actor, ref ops.Ref) error
	matching   func(o *ops.Ops, ctx context.Context, actor ops.Actor, filter ops.Filter, bulk ops.Bulk) (ops.BulkResult,
		error)
}

func newRetry(a *app) *cobra.Command {
	cmd := newAction(a, action{verb: "retry", done: "retried", one: (*ops.Ops).Retry, matching: (*ops.Ops).RetryMatching})
	cmd.Short = "Make poisoned statuses pending again"
	cmd.Long = `Makes poisoned statuses pending again, due now, with their error count reset. A
worker then runs their handler as for the first time. A status that fails again is
poisoned again. Only poisoned statuses can be retried.

` + actionHelp
	cmd.Example = actionExamples("retry")
	return cmd
}

func newDiscard(a *app) *cobra.Command {
	cmd := newAction(a, action{verb: "discard", done: "discarded", one: (*ops.Ops).Discard,
		matching: (*ops.Ops).DiscardMatching})
	cmd.Short = "Give up poisoned statuses permanently, without running their handler"
	cmd.Long = `Gives up poisoned statuses permanently: their handler will not run again for these
messages. This cannot be undone. The statuses stay stored, so that a redelivery is
still a duplicate, and are cleaned up like completed ones. The next message in
their lane can run. Only poisoned statuses can be discarded.

` + actionHelp
	cmd.Example = actionExamples("discard")
	return cmd
}

const actionHelp = `Give the IDs of statuses, which "inboxctl list" shows. With ID@VERSION nothing is
done if the status has changed since that version.

Or select all statuses that match filters with --matching. inboxctl then counts
them and asks for confirmation, unless --yes is given. --dry-run only counts. It
works in chunks of --chunk statuses, each in a transaction with an audit row, and
prints its progress. Ctrl-C stops it after the current chunk, and it prints what is
done. A second Ctrl-C ends inboxctl at once. To continue, run the same command
again. Statuses that someone else changes meanwhile are counted as skipped.

Messages received after the count are excluded unless --to says otherwise. No more
statuses are changed than were counted, unless there were too many to count. If
more match by then, inboxctl says so.

JSON: {"Results": [{"StatusID", "Outcome", "Error"}]}; with --matching an
ops.BulkResult with "DryRun", "Stopped" and "Error".`

func actionExamples(verb string) string {
	return strings.ReplaceAll(`  inboxctl VERB 0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11
  inboxctl VERB --matching --handler orders.mail --dry-run
  inboxctl VERB --matching --fingerprint 3f1c…
  inboxctl VERB --matching --message 7f9c2ba4 --yes
  inboxctl VERB --matching --error 'connection refused' --from 2h --yes`, "VERB", verb)
}

func newAction(a *app, act action) *cobra.Command {
	var (
		filters  filterFlags
		when     pageFlags
		bulk     bulkFlags
		matching bool
	)
	cmd := &cobra.Command{
		Use: act.verb + " [STATUS-ID[@VERSION]...]",
		RunE: func(cmd *cobra.Command, args []string) error {
			if matching {
				from, to, err := period(when.from, when.to, a.now())
				if err != nil {
					return err
				}
				return a.actOnMatching(cmd, act, args, filters.filter(from, to), &bulk)
			}
			if given := changed(cmd, append([]string{"yes", "dry-run", "chunk"}, statusFilters...)); len(given) > 0 {
				return misuse("%s is only for --matching", given[0])
			}
			refs, err := parseRefs(args)
			if err != nil {
				return err
			}
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				return a.actOnEach(ctx, o, act, refs)
			})
		},
	}
	cmd.Flags().BoolVar(&matching, "matching", false, "all poisoned statuses that match the filters")
	filters.bind(cmd)
	when.bindPeriod(cmd, receivedWhen)
	bulk.bind(cmd)
	return cmd
}

func parseRefs(args []string) ([]ops.Ref, error) {
	if len(args) == 0 {
		return nil, misuse("give status IDs, or --matching and filters")
	}
	refs := make([]ops.Ref, len(args))
	for i, arg := range args {
		id, version, given := strings.Cut(arg, "@")
		refs[i].StatusID = id
		if !given {
			continue
		}
		n, err := strconv.ParseInt(version, 10, 64)
		if err != nil || n < 1 {
			return nil, misuse("%q: the part after @ is not a version", arg)
		}
		refs[i].Version = n
	}
	return refs, nil
}

// actResult is the result for one status.
type actResult struct {
	StatusID string
	Outcome  string
	Error    string
}

// actOnEach applies the action to each status. It continues after a status that is refused, because
// the others may succeed. It stops at an error that every further status would get, too.
func (a *app) actOnEach(ctx context.Context, o *ops.Ops, act action, refs []ops.Ref) error {
	results := struct{ Results []actResult }{}
	var problems []error
	done := 0
	for _, ref := range refs {
		err := ctx.Err()
		if err == nil {
			err = act.one(o, ctx, a.who(), ref)
		}
		if err == nil {
			done++
			results.Results = append(results.Results, actResult{StatusID: ref.StatusID, Outcome: act.done})
			if a.output != "json" {
				fmt.Fprintf(a.out, "%s %s\n", act.done, oneLine(ref.StatusID))
			}
			continue
		}
		problems = append(problems, err)
		results.Results = append(results.Results, actResult{StatusID: ref.StatusID, Outcome: "not " + act.done,
			Error: secrets.Mask(err.Error())})
		if exitCode(err) == exitFailed {
			break
		}
	}
	if a.output == "json" {
		if err := writeJSON(a.out, results); err != nil {
			return err
		}
	}
	return combineErrors(problems, done, len(refs))
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
	for _, problem := range problems {
		if exitCode(problem) != code {
			code = exitFailed
		}
	}
	if done > 0 {
		code = exitPartly
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
	cmd.Flags().BoolVarP(&b.yes, "yes", "y", false, "with --matching: do not ask for confirmation")
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

func (a *app) actOnMatching(cmd *cobra.Command, act action, args []string, filter ops.Filter, bulk *bulkFlags) error {
	switch {
	case len(args) > 0:
		return misuse("use either status IDs or --matching, not both")
	case len(changed(cmd, statusFilters)) == 0:
		return misuse("--matching requires a filter; to select everything, give each --handler")
	case bulk.chunk < 1 || bulk.chunk > ops.MaxLimit:
		return misuse("--chunk = %d: must be 1 to %d", bulk.chunk, ops.MaxLimit)
	}
	filter.States = []ops.State{ops.StatePoisoned}
	// Exclude messages received after this moment, because they were neither counted nor seen.
	if now := a.now(); filter.To.IsZero() && filter.From.Before(now) {
		filter.To = now
	}
	return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
		counted, err := act.matching(o, ctx, a.who(), filter, ops.Bulk{DryRun: true})
		if err != nil {
			return err
		}
		matched := counted.Matched
		a.say("Poisoned statuses that match: %s", count(matched))
		if bulk.dryRun || matched == (ops.Count{}) {
			if a.output == "json" {
				return writeJSON(a.out, bulkReport{DryRun: bulk.dryRun, BulkResult: counted})
			}
			return nil
		}
		if !bulk.yes {
			if err := a.confirm(ctx, fmt.Sprintf("%s them as %s? Type yes: ", act.verb, oneLine(a.actor)), "yes"); err != nil {
				return err
			}
		}
		return a.runBulk(ctx, o, act, filter, bulk, matched)
	})
}

func (a *app) runBulk(
	ctx context.Context, o *ops.Ops, act action, filter ops.Filter, bulk *bulkFlags, matched ops.Count,
) error {
	chunks, end := a.betweenChunks(ctx, a.stepTimeout())
	defer end()
	most := matched.N
	if matched.Capped {
		most = 0
	}
	result, err := act.matching(o, chunks, a.who(), filter,
		ops.Bulk{ChunkSize: bulk.chunk, Most: most, Progress: func(r ops.BulkResult) {
			a.say("%s %d of %s, skipped %d", act.done, r.Done, count(matched), r.Skipped)
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

// betweenChunks returns a context that outlasts ctx until end is called at the end of a chunk. So
// an interrupt lets the running chunk finish and be counted. A chunk that takes longer than the
// limit is cancelled and rolled back.
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

// checkActor validates the actor. It runs before anything is audited and before the operator is
// asked to confirm.
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
	name := ""
	if current, err := user.Current(); err == nil {
		name = current.Username
	}
	if name == "" {
		name = getenv("USER")
	}
	if name == "" {
		return "" // a machine's name alone does not identify a person
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		name += "@" + host
	}
	return name
}

// confirm asks on standard error and reads a line. Any other answer than the wanted one returns
// errNotConfirmed, and so does the end of the input. A script without --yes therefore does nothing.
func (a *app) confirm(ctx context.Context, question, wanted string) error {
	fmt.Fprint(a.errOut, question)
	answers := make(chan string, 1)
	failed := make(chan error, 1)
	// The goroutine may outlast this call, because a read from a terminal cannot be cancelled. It
	// ends with the process.
	go func() {
		answer, err := bufio.NewReader(a.in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			failed <- fmt.Errorf("read the answer: %w", err)
			return
		}
		answers <- strings.TrimSuffix(strings.TrimSuffix(answer, "\n"), "\r")
	}()
	select {
	case answer := <-answers:
		if answer != wanted {
			return errNotConfirmed
		}
		return nil
	case err := <-failed:
		return err
	case <-ctx.Done():
		fmt.Fprintln(a.errOut)
		return fmt.Errorf("%w: %w", errNotConfirmed, ctx.Err())
	}
}
