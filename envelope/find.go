package envelope

import (
	"fmt"

	"github.com/gorm-inbox/inbox/handler"
)

// Find returns the ID of a record that is handled as a whole, without a Decoder, as the inline
// receiver does. Some strategies prefix the ID with channel. The ID has passed CheckID if err is
// nil.
//
// A record of several batched CloudEvents has an ID as a whole unless the strategy takes it from
// the event, which is ErrSharedID. Events are read within the default bounds of a DecoderConfig.
func (s IDStrategy) Find(channel string, r Record) (string, error) {
	var event *cloudEvent
	if s.find == nil || s.ofEvent {
		events, err := eventsOf(r, defaultBounds)
		switch {
		case err != nil:
			return "", err
		case len(events) > 1:
			return "", fmt.Errorf("%w: a record of %d events has no CloudEvents id of its own", ErrSharedID, len(events))
		case len(events) == 1:
			event = events[0].event
		}
	}
	return s.orDefault(event).checked(channel, r, event)
}

// FindIn returns the ID of a message that has already been decoded, from what is known of its
// record. It fails for strategies whose NeedsRecord is true. One event of a batched record does not
// have the record's ID, see SharedIn.
func (s IDStrategy) FindIn(channel string, p handler.Properties) (string, error) {
	if s.ofWhole { // it would find the same ID for every record, as it gets none
		return "", fmt.Errorf("the ID strategy %s needs a record, and there is none", s)
	}
	if err := s.SharedIn(p); err != nil {
		return "", err
	}
	r := Record{Headers: p.Headers}
	if p.Kafka != nil {
		r.Topic, r.Partition, r.Offset, r.Timestamp, r.Key = p.Kafka.Topic, p.Kafka.Partition, p.Kafka.Offset,
			p.Kafka.Timestamp, p.Kafka.Key
	}
	var event *cloudEvent
	if len(p.Attributes) > 0 {
		event = &cloudEvent{attributes: p.Attributes}
	}
	return s.orDefault(event).checked(channel, r, event)
}

// SharedIn returns ErrSharedID for an event that was decoded from a batched record if the strategy
// takes IDs from the record: all events of the batch would have the same ID. The number of events
// is no longer known, so a batch of one is refused as well.
func (s IDStrategy) SharedIn(p handler.Properties) error {
	if s.find == nil || s.ofEvent || len(p.Attributes) == 0 {
		return nil // without attributes it is a whole plain record
	}
	if kind, err := cloudEventKind(p.Headers); err != nil || kind != batchedEvents {
		return err
	}
	return fmt.Errorf("%w: %s cannot tell the events of a batch apart", ErrSharedID, s)
}

// NeedsRecord reports whether a message's properties are not enough to find its ID: Func may read
// the value.
func (s IDStrategy) NeedsRecord() bool { return s.ofWhole }

// orDefault replaces the zero value by the default strategy.
func (s IDStrategy) orDefault(event *cloudEvent) IDStrategy {
	switch {
	case s.find != nil:
		return s
	case event != nil:
		return eventDefault
	default:
		return plainDefault
	}
}

func (s IDStrategy) checked(channel string, r Record, event *cloudEvent) (string, error) {
	id, err := s.find(channel, r, event)
	if err == nil {
		err = CheckID(id)
	}
	return id, err
}

// eventsOf reads the CloudEvents of a record. It returns none for a plain record.
func eventsOf(r Record, within bounds) ([]decoded, error) {
	kind, err := cloudEventKind(r.Headers)
	if err != nil {
		return nil, err
	}
	switch kind {
	case binaryEvent:
		return binaryMode(r, within)
	case structuredEvent:
		return structured(r, within)
	case batchedEvents:
		return batched(r, within)
	default:
		return nil, nil
	}
}
