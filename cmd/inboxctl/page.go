package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

// pageFlags are the flags of commands that list.
type pageFlags struct {
	limit    int
	after    string
	from, to string
}

// bind adds --limit and --after.
func (p *pageFlags) bind(cmd *cobra.Command) {
	cmd.Flags().IntVar(&p.limit, "limit", 50, "the maximum number of lines, 1 to 1000")
	cmd.Flags().StringVar(&p.after, "after", "",
		"continue after this place, which the previous page printed; use the same filters")
}

// bindPeriod adds --from and --to. Their help begins with what.
func (p *pageFlags) bindPeriod(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar(&p.from, "from", "", what+"not before: a time such as 2026-01-02T03:04:05Z, or 90m, 24h, 7d ago")
	cmd.Flags().StringVar(&p.to, "to", "", what+"before: as --from")
}

func (p *pageFlags) check() error {
	if p.limit < 1 || p.limit > ops.MaxLimit {
		return misuse("--limit = %d: must be 1 to %d", p.limit, ops.MaxLimit)
	}
	return nil
}

// place returns where the page begins, and the period of its list. A cursor belongs to the filter
// that it came from, but "24h ago" is another time in the next command. So a place consists of the
// period and the cursor.
func (p *pageFlags) place(now time.Time) (from, to time.Time, cursor ops.Cursor, err error) {
	if err := p.check(); err != nil {
		return from, to, "", err
	}
	parts := strings.Split(p.after, ".")
	if len(parts) != 3 {
		from, to, err = period(p.from, p.to, now)
		return from, to, ops.Cursor(p.after), err
	}
	if from, err = fromMicros(parts[0]); err == nil {
		to, err = fromMicros(parts[1])
	}
	return from, to, ops.Cursor(parts[2]), err
}

// next returns the value of --after for the next page.
func next(from, to time.Time, cursor ops.Cursor) ops.Cursor {
	if cursor == "" || from.IsZero() && to.IsZero() {
		return cursor
	}
	return ops.Cursor(fmt.Sprintf("%s.%s.%s", micros(from), micros(to), cursor))
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

// more tells people how to get the next page.
func (a *app) more(next ops.Cursor, partial bool, looked int) {
	switch {
	case a.output == "json" || next == "":
	case partial:
		a.say("Stopped after %d rows; there may be more: continue with --after %s", looked, oneLine(string(next)))
	default:
		a.say("There is more: continue with --after %s", oneLine(string(next)))
	}
}
