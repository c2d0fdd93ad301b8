package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

func newList(a *app) *cobra.Command {
	var (
		filters     filterFlags
		page        pageFlags
		counts, all bool
	)
	cmd := &cobra.Command{
		Use: "list", Short: "Find statuses by state, handler, message, error and age",
		Long: `Lists statuses: one line for each message and handler, the newest first. A status
must match all filters. "failing" selects pending statuses that have failed and
will be retried.

A page has --limit lines. The value of --after for the next page is printed below
it. With --error, --fingerprint or --type a search may stop early after it has read
many rows. It then prints how to continue.

` + exportHelp + `
Statuses that change meanwhile may be missing or appear twice.

RECEIVED is how long ago the message was received, ERRORS how often it has failed
since an operator last retried it. --wide shows whole errors.

JSON: ops.Page of ops.Status; with --count {"count"}; with jsonl an ops.Status.`,
		Example: `  inboxctl list --state poisoned
  inboxctl list --state poisoned,failing --handler orders.mail --error timeout
  inboxctl list --message 7f9c2ba4 --wide
  inboxctl list --state pending --to 1h --count
  inboxctl list --state poisoned -o json | jq -r '.items[].id'
  inboxctl list --state poisoned --export csv --limit 10000 > poisoned.csv`,
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			if counts {
				return a.printCount(cmd, &filters, &page)
			}
			return printPage(a, cmd, &page,
				func(o ops.Reader, ctx context.Context, after ops.Cursor, limit int) (ops.Page[ops.Status], error) {
					return o.List(ctx, filters.filter(page.in), after, limit)
				}, func(w io.Writer, found []ops.Status) { writeStatuses(w, found, a.now(), all) })
		},
	}
	filters.bindStates(cmd, ops.States()...)
	filters.bind(cmd)
	page.bindPeriod(cmd, receivedWhen)
	page.bind(cmd)
	page.bindExport(cmd)
	cmd.Flags().BoolVar(&counts, "count", false, "only count them, reading at most 10000 rows")
	cmd.Flags().BoolVar(&all, "wide", false, "show whole errors")
	return cmd
}

func (a *app) printCount(cmd *cobra.Command, filters *filterFlags, page *pageFlags) error {
	if _, err := page.start(cmd, a.now()); err != nil {
		return err
	}
	return a.reading(cmd.Context(), func(ctx context.Context, o ops.Reader) error {
		n, err := o.Count(ctx, filters.filter(page.in))
		if err != nil {
			return err
		}
		return a.print(struct{ Count ops.Count }{n}, func() { fmt.Fprintln(a.out, count(n)) })
	})
}

func writeStatuses(w io.Writer, statuses []ops.Status, now time.Time, wide bool) {
	t := newTable("STATUS", "STATE", "HANDLER", "MESSAGE", "TYPE", ">RECEIVED", ">ERRORS", "ERROR").
		limit("TYPE", 40).limit("ERROR", errorLimit(wide))
	t.none = "No status found."
	for _, s := range statuses {
		t.add(s.ID, stateName(s, now), s.HandlerKey, s.MessageID, s.Type, ago(now, s.ReceivedAt), number(s.ErrorCount),
			s.LastError)
	}
	t.write(w)
}

// stateName returns the state. For a pending status it adds whether it waits in its lane or for its time, or has
// failed.
func stateName(s ops.Status, now time.Time) string {
	switch {
	case s.State == ops.StatePending && s.Waiting:
		return "pending (waits in lane)"
	case s.Failing:
		return "pending (failing)"
	case s.NotBefore().After(now):
		return "pending (not before " + instant(s.NotBefore()) + ")"
	}
	return string(s.State)
}

// filterFlags are the flags that select statuses.
type filterFlags struct {
	states, handlers            []string
	message, namespace          string
	typ, errorText, fingerprint string
}

// receivedWhen is the start of the help of --from and --to where they select messages.
const receivedWhen = "of messages received "

// statusFilters are the flags that bind adds. Some commands have --state besides.
var statusFilters = []string{"handler", "message", "namespace", "type", "from", "to", "error", "fingerprint"}

func (f *filterFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.message, "message", "", "of the message with this ID")
	flags.StringVar(&f.namespace, "namespace", "", "of that ID, usually the channel (default all)")
	f.bindCommon(cmd)
}

// bindCommon adds the flags that narrow failure groups, too.
func (f *filterFlags) bindCommon(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.handlers, "handler", nil, "of this handler key; may be repeated")
	flags.StringVar(&f.typ, "type", "", "of messages of this type")
	flags.StringVar(&f.errorText, "error", "", "whose last error contains this, ignoring case")
	flags.StringVar(&f.fingerprint, "fingerprint", "", "of this failure group, see \"inboxctl failures\"")
}

func (f *filterFlags) bindStates(cmd *cobra.Command, states ...ops.State) {
	names := texts[string](states)
	cmd.Flags().StringSliceVar(&f.states, "state", nil, strings.Join(names, ", ")+"; may be repeated (default all)")
	completeFlag(cmd, "state", names...)
}

func (f *filterFlags) filter(in period) ops.Filter {
	return ops.Filter{From: in.from, To: in.to, HandlerKeys: f.handlers, MessageID: f.message, Namespace: f.namespace,
		Type: f.typ, ErrorText: f.errorText, Fingerprint: f.fingerprint, States: texts[ops.State](f.states)}
}

// texts converts between two types of strings, such as states and their names.
func texts[To, From ~string](all []From) (converted []To) {
	for _, each := range all {
		converted = append(converted, To(each))
	}
	return converted
}

var daysAgo = regexp.MustCompile(`^(\d{1,6})d$`)

// when parses a time, or a duration before now or, if sign is 1 and not -1, after it.
func when(flag, text string, now time.Time, sign int) (time.Time, error) {
	now = now.Truncate(time.Microsecond) // the precision of a position in --after
	if text == "" {
		return time.Time{}, nil
	}
	if days := daysAgo.FindStringSubmatch(text); days != nil {
		n, err := strconv.Atoi(days[1])
		return now.AddDate(0, 0, sign*n), err
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(time.Duration(sign) * d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC().Truncate(time.Microsecond), nil
		}
	}
	return time.Time{},
		misuse("--%s = %q: must be 2026-01-02T03:04:05Z, 2026-01-02 (in UTC), or a duration such as 90m, 24h or 7d", flag,
			text)
}

// changed returns which of these flags the user set.
func changed(cmd *cobra.Command, names []string) (given []string) {
	for _, name := range names {
		if flag := cmd.Flags().Lookup(name); flag != nil && flag.Changed {
			given = append(given, "--"+name)
		}
	}
	return given
}

// pageFlags are the flags of commands that list.
type pageFlags struct {
	limit    int
	after    string
	from, to string
	export   string // empty unless the user wants no page
	in       period // set by start
}

// period is the time that --from and --to select.
type period struct{ from, to time.Time }

// bind adds --limit and --after.
func (p *pageFlags) bind(cmd *cobra.Command) {
	cmd.Flags().IntVar(&p.limit, "limit", 50, "the maximum number of lines, 1 to 1000")
	cmd.Flags().StringVar(&p.after, "after", "",
		"continue from this position, which the previous page printed; use the same filters")
}

// bindPeriod adds --from and --to. Their help begins with what.
func (p *pageFlags) bindPeriod(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar(&p.from, "from", "", what+"not before: a time such as 2026-01-02T03:04:05Z, or 90m, 24h, 7d ago")
	cmd.Flags().StringVar(&p.to, "to", "", what+"before: as --from")
}

// period parses --from and --to.
func (p *pageFlags) period(now time.Time) (in period, err error) {
	if in.from, err = when("from", p.from, now, -1); err == nil {
		in.to, err = when("to", p.to, now, -1)
	}
	return in, err
}

// start returns where the page begins, and sets the period of its list. A cursor belongs to the filter that it came
// from, but "24h ago" is another time in the next command. So the position in --after has the period and the cursor.
func (p *pageFlags) start(cmd *cobra.Command, now time.Time) (cursor ops.Cursor, err error) {
	if err := p.checkExport(cmd); err != nil {
		return "", err
	}
	if p.limit < 1 || p.limit > ops.MaxLimit && p.export == "" {
		return "", misuse("--limit = %d: must be 1 to %d", p.limit, ops.MaxLimit)
	}
	parts := strings.Split(p.after, ".")
	if len(parts) != 3 {
		p.in, err = p.period(now)
		return ops.Cursor(p.after), err
	}
	if p.in.from, err = fromMicros(parts[0]); err == nil {
		p.in.to, err = fromMicros(parts[1])
	}
	return ops.Cursor(parts[2]), err
}

// next returns the value of --after for the next page.
func (in period) next(cursor ops.Cursor) ops.Cursor {
	if cursor == "" || in == (period{}) {
		return cursor
	}
	return ops.Cursor(fmt.Sprintf("%s.%s.%s", micros(in.from), micros(in.to), cursor))
}

// printPage prints a page of a list, or with --export all of it or as many rows as --limit says.
func printPage[T any](a *app, cmd *cobra.Command, p *pageFlags,
	list func(o ops.Reader, ctx context.Context, after ops.Cursor, limit int) (ops.Page[T], error),
	write func(w io.Writer, items []T),
) error {
	after, err := p.start(cmd, a.now())
	if err != nil {
		return err
	}
	return a.reading(cmd.Context(), func(ctx context.Context, o ops.Reader) error {
		if p.export != "" {
			maxRows := 0
			if cmd.Flags().Changed("limit") {
				maxRows = p.limit
			}
			return export(a, p.export, maxRows, func(after ops.Cursor, limit int) (ops.Page[T], error) {
				return list(o, ctx, after, limit)
			})
		}
		found, err := list(o, ctx, after, p.limit)
		if err != nil {
			return err
		}
		found.Next = p.in.next(found.Next)
		err = a.print(found, func() { write(a.out, found.Items) })
		a.more(found.Next, found.Partial, found.Scanned)
		return err
	})
}

func micros(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strconv.FormatInt(t.UnixMicro(), 10)
}

func fromMicros(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, misuse("--after is not a value that a page printed")
	}
	return time.UnixMicro(n).UTC(), nil
}

// more prints how to get the next page.
func (a *app) more(next ops.Cursor, partial bool, looked int) {
	switch {
	case a.structured() || next == "":
	case partial:
		a.say("Stopped after %d rows; there may be more: continue with --after %s", looked, oneLine(string(next)))
	default:
		a.say("There is more: continue with --after %s", oneLine(string(next)))
	}
}

func newAudit(a *app) *cobra.Command {
	var (
		page     pageFlags
		who, act string
		filter   ops.AuditFilter
	)
	cmd := &cobra.Command{
		Use: "audit", Short: "The audit of actions and views, latest first",
		Long: `Lists the actions of operators, their views of messages and their denied requests,
latest first. Each row was written in the transaction of its action. ROLE is the
database's role with which the actor was logged in. Reading the audit is not audited.

` + exportHelp + `

JSON: ops.Page of ops.AuditEntry, whose Detail is JSON in a string; with jsonl an
ops.AuditEntry.`,
		Example: `  inboxctl audit
  inboxctl audit --by alice@ops1 --from 24h
  inboxctl audit --action delete
  inboxctl audit --target 7f9c2ba4
  inboxctl audit --from 30d --export csv > audit.csv`,
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			filter.Actor, filter.Action = ops.Actor(who), ops.Action(act)
			return printPage(a, cmd, &page,
				func(o ops.Reader, ctx context.Context, after ops.Cursor, limit int) (ops.Page[ops.AuditEntry], error) {
					filter.From, filter.To = page.in.from, page.in.to
					return o.Audit(ctx, filter, after, limit)
				}, writeAudit)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&who, "by", "", "of this actor")
	flags.StringVar(&act, "action", "", "of this action, such as retry, discard, delete, view, denied")
	flags.StringVar(&filter.Target, "target", "", "whose target contains this")
	page.bindExport(cmd)
	page.bindPeriod(cmd, "")
	completeFlag(cmd, "action", texts[string](ops.Actions())...)
	page.bind(cmd)
	return cmd
}

func writeAudit(w io.Writer, entries []ops.AuditEntry) {
	t := newTable("AT", "ACTOR", "ROLE", "ACTION", "TARGET", "DETAIL").limit("DETAIL", 80)
	t.none = "No audit row found."
	for _, e := range entries {
		t.add(instant(e.OccurredAt), string(e.Actor), e.DatabaseRole, string(e.Action), e.Target, e.Summary())
	}
	t.write(w)
}
