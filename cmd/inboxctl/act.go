package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

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
	return together(problems, done, len(refs))
}

// together combines the errors of several actions, some of which failed.
func together(problems []error, done, all int) error {
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
