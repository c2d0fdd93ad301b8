package store

import (
	"strings"
	"time"
)

// Stamp scans a time however the driver gives it: as a time or, from SQLite
// without a column's declared type, as text. It is UTC; NULL is the zero time.
type Stamp struct{ time.Time }

// timeFormats are tried in turn: the SQLite store's own, what the drivers write
// for a time.Time, SQLite's functions.
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
	// A Time's String ends with its zone's name, which may be anything ("+04"
	// where there is no abbreviation), and with its monotonic clock's reading.
	// The offset before them says it all.
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

// Pointer is nil for NULL.
func (t Stamp) Pointer() *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t.Time
}

// SQLiteTime is a time as the SQLite store stores it: UTC text of fixed
// width, so that it sorts. Use it for every time in a statement of one's own.
func SQLiteTime(t time.Time) string {
	return t.UTC().Format("2006-01-02 15:04:05.000000") + "+00:00"
}

// StorableTime keeps a producer's nonsense within what every dialect stores, which
// is microseconds.
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
