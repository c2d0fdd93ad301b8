package ops

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
)

// badInput returns an ErrBadInput that says what is wrong with an argument.
func badInput(name, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrBadInput, name, fmt.Sprintf(format, args...))
}

// checkText reports text that a column cannot store unchanged. A most of 0 allows any length.
func checkText(name, text string, least, most int) error {
	if len(text) < least {
		return badInput(name, "it is empty")
	}
	if err := store.CheckText(text, most); err != nil {
		return badInput(name, "%s", err)
	}
	return nil
}

// argument is a text with its name and the lengths that it may have, see checkText.
type argument struct {
	name, text  string
	least, most int
}

func checkTexts(arguments ...argument) error {
	for _, a := range arguments {
		if err := checkText(a.name, a.text, a.least, a.most); err != nil {
			return err
		}
	}
	return nil
}

// within reports whether a time is not before from and before to, where zero is no limit.
func within(t, from, to time.Time) bool {
	return (from.IsZero() || !t.Before(from)) && (to.IsZero() || t.Before(to))
}

func checkAges(from, to time.Time) error {
	if !from.IsZero() && !to.IsZero() && !from.Before(to) {
		return badInput("age", "from %s is not before to %s", from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	for _, t := range []time.Time{from, to} {
		if t = t.UTC(); !t.IsZero() && (t.Year() < 1 || t.Year() > 9999) {
			return badInput("age", "the year %d is out of range", t.Year())
		}
	}
	return nil
}

// startOfTime is the earliest time that is stored. Lists to the oldest row end before it.
var startOfTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)

// exactly returns the limits of an age for times as this module stores them, in whole microseconds: from oldest on, and
// before before.
func exactly(from, to time.Time) (oldest, before time.Time) {
	oldest, before = startOfTime, endOfTime
	if from.After(oldest) {
		oldest = wholeMicroseconds(from)
	}
	if to = wholeMicroseconds(to); !to.IsZero() && to.Before(before) {
		before = to
	}
	return oldest, before
}

// wholeMicroseconds rounds up: no stored time is between the two.
func wholeMicroseconds(t time.Time) time.Time {
	if whole := t.Truncate(time.Microsecond); whole.Before(t) {
		return whole.Add(time.Microsecond)
	}
	return t
}

// roughly returns the same limits for times in any form, as statements compare them. Rows within them are then compared
// exactly. On SQLite, GORM's Create stores times without a fraction if it is 0, and these sort before the same time in
// our form.
func (o *access) roughly(from, to time.Time) (oldest, before time.Time) {
	oldest, before = exactly(from, to)
	if !o.store.ExactTimes() && oldest.After(startOfTime.Add(time.Second)) {
		oldest = oldest.Add(-time.Second)
	}
	return oldest, before
}

// checkID returns an ID as it is stored.
func checkID(name, id string) (string, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return "", badInput(name, "%.60q is not a UUID", id)
	}
	return parsed.String(), nil
}

func checkLimit(limit int) (int, error) {
	switch {
	case limit == 0:
		return defaultLimit, nil
	case limit < 0 || limit > MaxLimit:
		return 0, badInput("limit", "%d: must be 1 to %d", limit, MaxLimit)
	}
	return limit, nil
}

func joined[T ~string](words []T) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return strings.Join(texts, ", ")
}

// listed is the content of a cursor.
type listed struct {
	// List is a digest of the list and its filter.
	List string `json:"l"`
	place
}

func digest(list string, filter any) (string, error) {
	text, err := json.Marshal(filter)
	if err != nil {
		return "", badInput("filter", "%s", err)
	}
	sum := sha256.Sum256(append([]byte(list+"\x00"), text...))
	return hex.EncodeToString(sum[:6]), nil
}

// cursorOf returns the cursor of a place; empty for a nil place.
func cursorOf(list string, filter any, p *place) (Cursor, error) {
	if p == nil {
		return "", nil
	}
	of, err := digest(list, filter)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(listed{of, *p})
	if err != nil {
		return "", fmt.Errorf("make a cursor: %w", err)
	}
	return Cursor(base64.RawURLEncoding.EncodeToString(text)), nil
}

// placeOf returns the place of a cursor; nil for the empty cursor. The result is safe for statements, even if the
// cursor was forged.
func placeOf(list string, filter any, c Cursor) (*place, error) {
	if c == "" {
		return nil, nil
	}
	bad := badInput("cursor", "it is not one of this list")
	of, err := digest(list, filter)
	if err != nil {
		return nil, err
	}
	text, err := base64.RawURLEncoding.DecodeString(string(c))
	if err != nil || len(text) > 2000 {
		return nil, bad
	}
	var l listed
	if err := json.Unmarshal(text, &l); err != nil || l.List != of || l.Stage < 0 {
		return nil, bad
	}
	var t store.Stamp
	if l.At != "" && (len(l.At) > 100 || store.CheckText(l.At, 0) != nil || t.Scan(l.At) != nil) {
		return nil, bad
	}
	if store.CheckText(l.Key, columns.MaxHandlerKey) != nil {
		return nil, bad
	}
	if l.ID != "" {
		if l.ID, err = checkID("cursor", l.ID); err != nil {
			return nil, bad
		}
	}
	return &l.place, nil
}

// Filter selects the statuses to list, count or act on. A status must match every field. The zero Filter matches every
// status. Audit rows store it as JSON.
type Filter struct {
	// States matches any of these states. Empty matches all; with ErrorText or Fingerprint it means StatePoisoned and
	// StateFailing, which indexes find quickly.
	States []State `json:"states,omitempty"`
	// HandlerKeys matches any of these keys, at most 1,000.
	HandlerKeys []string `json:"handler_keys,omitempty"`
	// MessageID matches exactly, in Namespace or, if that is empty, in all namespaces.
	MessageID string `json:"message_id,omitempty"`
	// Namespace is the namespace of MessageID. Without a MessageID it is ErrBadInput.
	Namespace string `json:"namespace,omitempty"`
	// Type matches the message type exactly.
	Type string `json:"type,omitempty"`
	// From and To limit when the message was received: not before From, and before To. Zero is no limit.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// ErrorText is a substring of the last error, ignoring case.
	ErrorText string `json:"error_text,omitempty"`
	// Fingerprint matches the statuses of one failure group, see Failures.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Cursor is a place in a list, from which List and similar methods continue. It is opaque, does not expire and belongs
// to the list and the filter that it came from; with any other it is ErrBadInput. The empty Cursor is the beginning.
type Cursor string

// These limit one call.
const (
	// defaultLimit is the page size if the caller gives 0.
	defaultLimit = 50
	// MaxLimit is the largest page size; a larger one is ErrBadInput.
	MaxLimit = 1000
	// lookLimit is how many rows a page, a count or a failure overview reads.
	lookLimit = 10_000
	// recentLimit is how many of the latest messages a handler's page reads. More would tell its last hours little better,
	// and take longer than all else on that page.
	recentLimit = 2_000
)

// Count is a capped count: N of the rows that were read matched.
type Count struct {
	N int64
	// Capped means that there may be more rows, which were not read.
	Capped bool
	// Unknown means that the database did not count in time, as in Overview. N is 0 then.
	Unknown bool
}

// String returns the number, with a plus if there may be more; "?" if it is unknown.
func (c Count) String() string {
	switch {
	case c.Unknown:
		return "?"
	case c.Capped:
		return fmt.Sprintf("%d+", c.N)
	default:
		return strconv.FormatInt(c.N, 10)
	}
}

// allOpenKeys returns the handler keys that have rows of any stage.
func (o *access) allOpenKeys(ctx context.Context) ([]string, error) {
	var all []string
	for _, st := range []store.Stage{store.StagePoisoned, store.StageDue, store.StageWaiting} {
		keys, err := o.store.KeysIn(ctx, o.pool(ctx), st, maxKeys)
		if err != nil {
			return nil, err
		}
		all = append(all, keys...)
	}
	return distinct(all), nil
}

// distinct returns the keys sorted and without duplicates. It does not change its argument.
func distinct(keys []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(keys)))
}
