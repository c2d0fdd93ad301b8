package dashboard

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/ops"
)

// visible makes stored text readable. Invisible characters, characters that change the text direction and invalid bytes
// are written as escapes with their numbers. Line ends and tabs stay. Templates escape the rest.
func visible(s string) string {
	var out strings.Builder
	for len(s) > 0 {
		c, size := utf8.DecodeRuneInString(s)
		switch {
		case c == utf8.RuneError && size <= 1:
			fmt.Fprintf(&out, `\x%02x`, s[0])
		case isInvisible(c):
			fmt.Fprintf(&out, `\u%04x`, c)
		default:
			out.WriteRune(c)
		}
		s = s[size:]
	}
	return out.String()
}

// typable formats an ID so that a person can see and type it. It is like visible, and also escapes spaces that are
// invisible or that browsers do not keep.
func typable(id string) string {
	var out strings.Builder
	characters := []rune(visible(id))
	for i, c := range characters {
		lone := c == ' ' && i > 0 && i < len(characters)-1 && characters[i-1] != ' '
		if unicode.IsSpace(c) && !lone {
			fmt.Fprintf(&out, `\u%04x`, c)
		} else {
			out.WriteRune(c)
		}
	}
	return out.String()
}

// isInvisible reports whether c is a control, format or private-use character, or a line or paragraph separator.
func isInvisible(c rune) bool {
	if c == '\n' || c == '\t' {
		return false
	}
	return unicode.IsControl(c) || unicode.In(c, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp)
}

// short cuts a text to at most limit characters.
func short(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}

// number formats a number with its digits grouped by thousands.
func number[T int | int32 | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if s[0] == '-' {
		sign, s = "−", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return sign + s
}

// anyNumber is number for templates, where the type is not known.
func anyNumber(n any) (string, error) {
	if v := reflect.ValueOf(n); v.CanInt() {
		return number(v.Int()), nil
	}
	return "", fmt.Errorf("number: %T", n)
}

func countText(c ops.Count) string {
	if c.Unknown {
		return "?"
	}
	if c.Capped {
		return number(c.N) + "+"
	}
	return number(c.N)
}

// took formats the time that something has taken, which is mostly short.
func took(d time.Duration) string {
	if d < time.Minute {
		return d.Round(time.Millisecond).String()
	}
	return age(d)
}

// age formats a duration with its two largest units.
func age(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d < 0:
		return "−" + age(-d)
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm %02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh %02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd %02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// moment is a time as pages show it: its age, and the exact time.
type moment struct {
	Text, Machine, Exact string
}

// When returns a time relative to the page's. It returns nil for the zero time.
func (v *view) When(t time.Time) *moment {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	text := age(v.Now.Sub(t)) + " ago"
	if t.After(v.Now) {
		text = "in " + age(t.Sub(v.Now))
	}
	return &moment{text, t.Format(time.RFC3339Nano), t.Format("2006-01-02 15:04:05.000") + " UTC"}
}

// content is stored bytes for display: as text if they are text, else as a dump.
type content struct {
	Text string
	Size int64
	// Dump is true if Text is a hex dump.
	Dump bool
	// Cut is true if Text is only the beginning.
	Cut bool
	// Withheld is true if the content is too long for the redaction hook.
	Withheld bool
	// Sealed says why a content is not shown that is sealed.
	Sealed string
	// None is true if there is no content at all, which differs from an empty one.
	None bool
}

// How much of a content is shown.
const (
	shownText = 64 << 10
	// shownBytes is the longest binary content that is shown without a dump.
	shownBytes = 48
	shownDump  = 4 << 10
)

func contentOf(raw []byte) content {
	return previewOf(ops.Preview{Bytes: raw, Size: int64(len(raw)), None: raw == nil})
}

func previewOf(p ops.Preview) content {
	raw := p.Bytes
	c := content{Size: p.Size, None: p.None || raw == nil && !p.Withheld, Cut: p.Cut, Withheld: p.Withheld,
		Sealed: p.Sealed}
	if p.Cut { // the cut may be inside a character
		for range utf8.UTFMax - 1 {
			if last, size := utf8.DecodeLastRune(raw); last != utf8.RuneError || size != 1 {
				break
			}
			raw = raw[:len(raw)-1]
		}
	}
	if utf8.Valid(raw) && !strings.ContainsRune(string(raw), 0) {
		if len(raw) > shownText {
			raw, c.Cut = []byte(strings.ToValidUTF8(string(raw[:shownText]), "")), true
		}
		c.Text = visible(string(raw))
		return c
	}
	if len(raw) <= shownBytes {
		c.Text = fmt.Sprintf("% x", raw)
		return c
	}
	if len(raw) > shownDump {
		raw, c.Cut = raw[:shownDump], true
	}
	c.Dump, c.Text = true, hex.Dump(raw)
	return c
}

// count returns how many statuses match, in the cheapest way available, because lists are reloaded often: from a page
// that has everything, else from the overview if it counts these statuses, else by a query of at most the largest page.
// If the page reached its scan limit, only the page is counted, because a query would scan as much again.
func (q *request) count(
	from ops.Reader, filter ops.Filter, page ops.Page[ops.Status], seen ops.Overview,
) (ops.Count, error) {
	onPage := ops.Count{N: int64(len(page.Items)), Capped: page.Next != "" || page.Partial}
	if q.query.Get("after") == "" && !onPage.Capped {
		return onPage, nil
	}
	if counted, ok := countedBy(seen, filter); ok {
		return counted, nil
	}
	if page.Partial {
		onPage.Capped = true
		return onPage, nil
	}
	all, err := from.List(q.r.Context(), filter, "", ops.MaxLimit)
	return ops.Count{N: int64(len(all.Items)), Capped: all.Next != "" || all.Partial}, err
}

// countedBy takes a count from an overview, which has each handler's pending, processing and poisoned statuses.
func countedBy(seen ops.Overview, f ops.Filter) (sum ops.Count, ok bool) {
	if len(f.States) == 0 || f.MessageID != "" || f.Type != "" || f.ErrorText != "" || f.Fingerprint != "" ||
		!f.From.IsZero() || !f.To.IsZero() {
		return ops.Count{}, false
	}
	for _, h := range seen.Handlers {
		if len(f.HandlerKeys) > 0 && !slices.Contains(f.HandlerKeys, h.HandlerKey) {
			continue
		}
		for i, state := range f.States {
			of, known := map[ops.State]ops.Count{ops.StatePending: h.Pending, ops.StateProcessing: h.Processing,
				ops.StatePoisoned: h.Poisoned}[state]
			if !known || of.Unknown {
				return ops.Count{}, false
			}
			if !slices.Contains(f.States[:i], state) { // the query may name a state twice
				sum.N, sum.Capped = sum.N+of.N, sum.Capped || of.Capped
			}
		}
	}
	return sum, len(seen.Handlers) > 0
}

// notice is the result of the last action, shown on the page after it. It comes from that page's address, which anyone
// can write, so it is one of the fixed texts, with numbers.
type notice struct {
	Text string
	Bad  bool
	// Done and Left are how many statuses an action on several changed and skipped.
	Done, Left int
	Counted    bool
}

var noticeFields = []string{"notice", "done", "left"}

var noticeTexts = map[string]notice{
	"retried":          {Text: "Retried: due now."},
	"discarded":        {Text: "Discarded: it will not run again."},
	"rerun":            {Text: "Due now: the handler runs again."},
	"rescheduled":      {Text: "Rescheduled: it is due at that time."},
	"cancel-requested": {Text: "Requested: its worker cancels the call within about a heartbeat."},
	"released":         {Text: "Released: due now. The old call may still be running."},
	"retried-some":     {Text: "Retried.", Counted: true},
	"discarded-some":   {Text: "Discarded.", Counted: true},
	"paused":           {Text: "Paused: workers stop claiming within a heartbeat. Running handlers continue."},
	"resumed":          {Text: "Resumed: workers claim again within a heartbeat."},
	"resume-requested": {Text: "Requested: the consumer resumes the partition within seconds."},
	"skip-requested":   {Text: "Requested: the consumer keeps the record as rejected and goes on within seconds."},
	"topic-forgotten":  {Text: "Forgotten: cleanup no longer waits for the topic."},
	"not-paused":       {Text: "It was not paused: nothing was done."},
	"accepted":         {Text: "Accepted: the record is now a message and no longer rejected."},
	"ran-again":        {Text: "Run again: its handlers have processed the record, and it is no longer rejected."},
	"known":            {Text: "Duplicate: the message had been accepted before. The record is no longer rejected."},
	"unrouted":         {Text: "Accepted, but no handler subscribes to its type."},
	"deleted":          {Text: "Deleted."},
	"replayed":         {Text: "Replayed: this is the new message."},
	"ended":            {Text: "Stopping: what is under way is completed or rolled back as a whole."},
	"nothing-chosen":   {Text: "Nothing was selected.", Bad: true},
	"already-stopped":  {Text: "It had already ended."},
}

func noticeIn(query url.Values) *notice {
	s, ok := noticeTexts[query.Get("notice")]
	if !ok {
		return nil
	}
	if s.Counted {
		s.Done, _ = strconv.Atoi(query.Get("done"))
		s.Left, _ = strconv.Atoi(query.Get("left"))
		s.Bad = s.Done == 0
	}
	return &s
}

func noticeQuery(what string) url.Values { return url.Values{"notice": {what}} }
