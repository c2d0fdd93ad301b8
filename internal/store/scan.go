package store

import (
	"database/sql"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/models"
)

// storedMessage is the message's half of a claim, all NULL if its row is gone.
type storedMessage struct {
	number                                                                 sql.NullInt64
	namespace, transportName, messageType, source, contentType, properties sql.NullString
	content, orderingKey                                                   []byte
	receivedAt                                                             anyTime
}

func (m storedMessage) message(id string) *models.Message {
	if !m.number.Valid {
		return nil
	}
	return &models.Message{
		ID: id, Namespace: m.namespace.String, Number: models.MessageNumber(m.number.Int64), TransportName: m.transportName.String, Type: m.messageType.String, Source: m.source.String,
		Content: filled(m.content), ContentType: m.contentType.String, SerializedProperties: m.properties.String,
		OrderingKey: m.orderingKey, ReceivedAt: m.receivedAt.Time,
	}
}

// anyTime scans a time however the driver gives it: as a time or, from SQLite
// without a column's declared type, as text. It is UTC; NULL is the zero time.
type anyTime struct{ time.Time }

// timeFormats are tried in turn: this package's own, what the drivers write
// for a time.Time, SQLite's functions.
var timeFormats = []string{
	"2006-01-02 15:04:05.999999999-07:00",
	"2006-01-02 15:04:05.999999999 -0700", // the beginning of a Time's String
	time.RFC3339Nano,
	"2006-01-02 15:04:05.999999999",
}

func (t *anyTime) Scan(source any) error {
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

// pointer is nil for NULL.
func (t anyTime) pointer() *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t.Time
}
