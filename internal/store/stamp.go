package store

import (
	"fmt"
	"strings"
	"time"
)

// Stamp scans a time in any form that a driver returns: as a time or, from a SQLite expression without a declared type,
// as text. The time is UTC, and NULL is the zero time.
type Stamp struct{ time.Time }

// timeFormats are tried in this order: the SQLite store's format, the drivers' formats of a time.Time, and the formats
// of SQLite's functions.
var timeFormats = []string{
	"2006-01-02 15:04:05.999999999-07:00",
	"2006-01-02 15:04:05.999999999 -0700", // the beginning of a Time's String
	time.RFC3339Nano,
	"2006-01-02 15:04:05.999999999",
}

func (t *Stamp) Scan(source any) error {
	var text string
	switch source := source.(type) {
	case nil:
		t.Time = time.Time{}
		return nil
	case time.Time:
		t.Time = source.UTC()
		return nil
	case string:
		text = source
	case []byte:
		text = string(source)
	}
	// The String of a Time ends with the zone's name, which may be anything ("+04" if there is no abbreviation), and
	// with the monotonic clock's reading. The offset before them is enough.
	if fields := strings.Fields(text); len(fields) > 3 {
		text = strings.Join(fields[:3], " ")
	}
	var err error
	for _, format := range timeFormats {
		var parsed time.Time
		if parsed, err = time.Parse(format, text); err == nil {
			t.Time = parsed.UTC()
			return nil
		}
	}
	return err
}

// Pointer returns nil for NULL.
func (t Stamp) Pointer() *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t.Time
}

// SQLiteTime formats a time as the SQLite store stores it: UTC text of fixed width, so that it sorts correctly. Use it
// for every time in statements of your own.
func SQLiteTime(t time.Time) string {
	return t.UTC().Format("2006-01-02 15:04:05.000000") + "+00:00"
}

// StorableTime limits a producer's time to the range that every dialect can store: the years 1 to 9999, in
// microseconds.
func StorableTime(t time.Time) time.Time {
	first := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	switch {
	case t.Before(first):
		return first
	case t.After(last):
		return last
	}
	return t.Truncate(time.Microsecond)
}

// maxYearsAhead is how far ahead a due time may be. A later one is a mistake, such as a wrong unit.
const maxYearsAhead = 10

// ChosenDue returns a due time that an application or an operator has chosen, as it is stored. A time too far ahead is
// an error.
func ChosenDue(at, now time.Time) (time.Time, error) {
	if at.After(now.AddDate(maxYearsAhead, 0, 0)) {
		return time.Time{}, fmt.Errorf("%s is more than %d years ahead", at.UTC().Format(time.RFC3339), maxYearsAhead)
	}
	return StorableTime(at.UTC()), nil
}
