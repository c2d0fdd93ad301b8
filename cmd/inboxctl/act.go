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
	cmd.Long = `Makes poisoned statuses pending again, due now, with no errors counted. A worker
runs their handler as if for the first time; one that fails again is poisoned
again. Only poisoned statuses can be retried.

` + actionHelp
	cmd.Example = actionExamples("retry")
	return cmd
}

func newDiscard(a *app) *cobra.Command {
	cmd := newAction(a, action{verb: "discard", done: "discarded", one: (*ops.Ops).Discard,
		matching: (*ops.Ops).DiscardMatching})
	cmd.Short = "End poisoned statuses for good, without running their handler"
	cmd.Long = `Ends poisoned statuses for good: their handler never runs for these messages. It
cannot be undone. They stay stored, so that a redelivery is still recognised, and
are cleaned up like completed ones. Their lane is free. Only poisoned statuses
can be discarded.

` + actionHelp
	cmd.Example = actionExamples("discard")
	return cmd
}

const actionHelp = `Name statuses by their IDs, of which "inboxctl list" is full. ID@VERSION is left
alone if the status has changed since that version was seen.

Or take all that match filters, by --matching. Then they are counted first and
you are asked, unless --yes is given; --dry-run only counts. It goes in chunks of
--chunk, each a transaction with an audit row, and tells how far it is. Ctrl-C
ends it behind the chunk under way and says what is done; a second one ends
inboxctl at once. To go on, give the same command again. Statuses that somebody
else changes meanwhile are left alone and counted as skipped. What is received
after the count is left out unless --to says otherwise, and no more are taken than
were counted, unless there were too many to count: if more match by then it says so.

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
		return nil, misuse("name statuses by their IDs, or give --matching and filters")
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
			return nil, misuse("%q: behind the @ there is no version", arg)
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
