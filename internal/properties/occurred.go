package properties

import (
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// OccurredAt returns the time of the event that a message is about, in UTC: its CloudEvents attribute "time", else the
// timestamp of its Kafka record, else zero (contract 4.5). A decoder refuses events whose time is no timestamp; such
// text in a message that the application made counts as none.
func OccurredAt(p handler.Properties) time.Time {
	if text, ok := p.Attributes["time"]; ok {
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			return at.UTC()
		}
	}
	if k := p.Kafka; k != nil && k.Timestamp.UnixMilli() >= 0 { // Kafka writes -1 for no timestamp
		return k.Timestamp
	}
	return time.Time{}
}
