package main

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

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
	names := make([]string, len(states))
	for i, state := range states {
		names[i] = string(state)
	}
	cmd.Flags().StringSliceVar(&f.states, "state", nil, strings.Join(names, ", ")+"; may be repeated (default all)")
	fixed(cmd, "state", names...)
}

func (f *filterFlags) filter(from, to time.Time) ops.Filter {
	filter := ops.Filter{From: from, To: to, HandlerKeys: f.handlers, MessageID: f.message, Namespace: f.namespace,
		Type: f.typ, ErrorText: f.errorText, Fingerprint: f.fingerprint}
	for _, state := range f.states {
		filter.States = append(filter.States, ops.State(state))
	}
	return filter
}

// period parses --from and --to.
func period(from, to string, now time.Time) (begin, end time.Time, err error) {
	if begin, err = when("from", from, now); err == nil {
		end, err = when("to", to, now)
	}
	return begin, end, err
}

var daysAgo = regexp.MustCompile(`^(\d{1,6})d$`)

// when parses a time, or a duration before now.
func when(flag, text string, now time.Time) (time.Time, error) {
	now = now.Truncate(time.Microsecond) // the precision of a page's place
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
			return t.UTC().Truncate(time.Microsecond), nil
		}
	}
	return time.Time{},
		misuse("--%s = %q: must be 2026-01-02T03:04:05Z, 2026-01-02 (in UTC), or an age such as 90m, 24h or 7d", flag,
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
