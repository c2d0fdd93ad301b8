package main

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

// filterFlags narrow which statuses a command is about.
type filterFlags struct {
	states, handlers                              []string
	message, typ, from, to, errorText, failureGrp string
}

// statusFilters are the flags that bind adds; --state is one more.
var statusFilters = []string{"handler", "message", "type", "from", "to", "error", "fingerprint"}

func (f *filterFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.handlers, "handler", nil, "of this handler key; may be repeated")
	flags.StringVar(&f.message, "message", "", "of the message with this ID")
	flags.StringVar(&f.typ, "type", "", "of messages of this type")
	flags.StringVar(&f.from, "from", "", "of messages received not before: a time such as 2026-01-02T03:04:05Z, or 90m, 24h, 7d ago")
	flags.StringVar(&f.to, "to", "", "of messages received before: likewise")
	flags.StringVar(&f.errorText, "error", "", "whose last error contains this, whatever the case")
	flags.StringVar(&f.failureGrp, "fingerprint", "", "of this failure group, see \"inboxctl failures\"")
}

func (f *filterFlags) bindStates(cmd *cobra.Command, states ...ops.State) {
	names := make([]string, len(states))
	for i, state := range states {
		names[i] = string(state)
	}
	cmd.Flags().StringSliceVar(&f.states, "state", nil, strings.Join(names, ", ")+"; may be repeated (default all)")
	fixed(cmd, "state", names...)
}

func (f *filterFlags) filter(now time.Time) (ops.Filter, error) {
	filter := ops.Filter{HandlerKeys: f.handlers, MessageID: f.message, Type: f.typ, ErrorText: f.errorText, Fingerprint: f.failureGrp}
	for _, state := range f.states {
		filter.States = append(filter.States, ops.State(state))
	}
	var err error
	filter.From, filter.To, err = period(f.from, f.to, now)
	return filter, err
}

// period reads --from and --to.
func period(from, to string, now time.Time) (begin, end time.Time, err error) {
	if begin, err = when("from", from, now); err == nil {
		end, err = when("to", to, now)
	}
	return begin, end, err
}

var daysAgo = regexp.MustCompile(`^(\d{1,6})d$`)

// when reads a time, or a length of time before now.
func when(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if days := daysAgo.FindStringSubmatch(text); days != nil {
		n, err := strconv.Atoi(days[1])
		return now.AddDate(0, 0, -n), err
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, misuse("--%s is %q, allowed are 2026-01-02T03:04:05Z, 2026-01-02 (in UTC), and ages such as 90m, 24h or 7d", flag, text)
}

// changed tells which of these flags were given.
func changed(cmd *cobra.Command, names []string) (given []string) {
	for _, name := range names {
		if flag := cmd.Flags().Lookup(name); flag != nil && flag.Changed {
			given = append(given, "--"+name)
		}
	}
	return given
}

// pageFlags are those of lists.
type pageFlags struct {
	limit int
	after string
}

func (p *pageFlags) bind(cmd *cobra.Command) {
	cmd.Flags().IntVar(&p.limit, "limit", ops.DefaultLimit, "how many at most, 1 to 1000")
	cmd.Flags().StringVar(&p.after, "after", "", "go on behind this place, which the page before told")
}

func (p *pageFlags) check() error {
	if p.limit < 1 || p.limit > ops.MaxLimit {
		return misuse("--limit is %d, allowed is 1 to %d", p.limit, ops.MaxLimit)
	}
	return nil
}

// more tells people how to go on.
func (a *app) more(next ops.Cursor, partial bool, looked int) {
	switch {
	case a.output == "json" || next == "":
	case partial:
		a.say("Looked at %d rows and stopped; the rest may hold more: repeat with --after %s", looked, oneLine(string(next)))
	default:
		a.say("There is more: repeat with --after %s", oneLine(string(next)))
	}
}
