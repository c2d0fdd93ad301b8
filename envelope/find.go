package envelope

import (
	"fmt"

	"github.com/gorm-inbox/inbox/handler"
)

// Find returns the ID of a record that is handled as a whole, without a Decoder, as the inline receiver does. Some
// strategies prefix the ID with channel. The ID has passed CheckID if err is nil.
//
// A record of several batched CloudEvents has an ID as a whole unless the strategy takes it from the event, which is
// ErrSharedID. Func gets such a record without attributes. Events are read within the default bounds of a
// DecoderConfig.
func (s IDStrategy) Find(channel string, r Record) (string, error) {
	in := IDInput{Record: r, Data: r.Value}
	if s.find == nil || s.ofEvent {
		events, err := eventsOf(r, defaultBounds)
		switch {
		case err != nil && !s.ofData: // a function may read what we cannot
			return "", err
		case len(events) > 1 && !s.ofData:
			return "", fmt.Errorf("%w: a record of %d events has no CloudEvents id of its own", ErrSharedID, len(events))
		case len(events) == 1:
			in.Attributes, in.Data = events[0].event.attributes, events[0].content
		}
	}
	return s.orDefault(in).checked(channel, in)
}

// FindIn returns the ID of a message that has already been decoded, from its properties and, if NeedsData is true, its
// content.
//
// An event that was decoded from a batch has no ID of its record: ErrSharedID, because all events of the batch would
// have the same one. The number of events is no longer known, so a batch of one is refused as well. A function that
// finds the same ID without the event takes it from the record.
func (s IDStrategy) FindIn(channel string, m handler.RawMessage) (string, error) {
	p := m.Properties
	batched := false
	if s.find != nil && (s.ofData || !s.ofEvent) && len(p.Attributes) > 0 { // else it is no event, or has its own ID
		kind, err := cloudEventKind(p.Headers)
		if err != nil {
			return "", err
		}
		batched = kind == batchedEvents
	}
	shared := func() error { return fmt.Errorf("%w: %s cannot tell the events of a batch apart", ErrSharedID, s) }
	if batched && !s.ofEvent {
		return "", shared()
	}
	in := IDInput{Record: Record{Value: m.Content, Headers: p.Headers}, Data: m.Content}
	if batched {
		in.Record.Value = nil
	}
	if len(p.Attributes) > 0 {
		in.Attributes = p.Attributes
	}
	if k := p.Kafka; k != nil {
		in.Record.Topic, in.Record.Partition, in.Record.Offset, in.Record.Timestamp, in.Record.Key = k.Topic, k.Partition,
			k.Offset, k.Timestamp, k.Key
		in.Index = k.Index
	}
	id, err := s.orDefault(in).checked(channel, in)
	if err == nil && batched {
		if ofRecord, err := s.checked(channel, IDInput{Record: in.Record, Index: -1}); err == nil && ofRecord == id {
			return id, shared()
		}
	}
	return id, err
}

// NeedsData reports whether a message's properties are not enough to find its ID: Func may read the data.
func (s IDStrategy) NeedsData() bool { return s.ofData }

// orDefault replaces the zero value by the default strategy.
func (s IDStrategy) orDefault(in IDInput) IDStrategy {
	switch {
	case s.find != nil:
		return s
	case in.Attributes != nil:
		return eventDefault
	default:
		return plainDefault
	}
}

func (s IDStrategy) checked(channel string, in IDInput) (string, error) {
	id, err := s.find(channel, in)
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
