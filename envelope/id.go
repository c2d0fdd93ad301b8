package envelope

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/routine"
)

// IDStrategy decides where a message's ID comes from (contract 4.4). It is an immutable value. The zero value stands
// for the default: CloudEventsID for CloudEvents, HeaderID() for plain records.
type IDStrategy struct {
	name      string
	ofEvent   bool // whether the ID differs between the events of one batched record
	ofChannel bool // whether the ID begins with the channel's name and a colon
	ofData    bool // whether it may need the data: then only the function knows whether IDs differ
	find      func(channel string, in IDInput) (string, error)
	err       error // why it cannot be used
}

// IDInput is the message that an ID, or a time, is found for.
type IDInput struct {
	// Record is the record as received. A message that was decoded before, such as a handler.RawMessage in package
	// idempotent, no longer has it: Value is then Data, or nil for an event of a batch.
	Record Record
	// Attributes are the CloudEvent's attributes. They are nil for a plain record, and for a record of several events
	// that is handled as one message.
	Attributes map[string]string
	// Data is the event's data, or the record's value.
	Data []byte
	// Index is the message's place in its record, from 0.
	Index int
}

// Err reports why the strategy cannot be used, such as a header without a name. It is nil if it can.
func (s IDStrategy) Err() error { return s.err }

// OfChannel reports whether its IDs begin with the channel's name and a colon.
func (s IDStrategy) OfChannel() bool { return s.ofChannel }

// String names the strategy, for logs and error messages.
func (s IDStrategy) String() string {
	if s.find == nil {
		return "default"
	}
	return s.name
}

// Names of the headers that hold an ID unless a strategy names others.
const (
	defaultIDHeader          = "MessageId"
	debeziumIDHeader         = "id" // set by Debezium's outbox event router
	defaultCorrelationHeader = "CorrelationId"
)

// CloudEventsID takes the CloudEvents attribute "id". It is the default for CloudEvents. Do not use it on channels that
// carry plain records: these have no such attribute, so they would all be missing their ID.
func CloudEventsID() IDStrategy {
	return IDStrategy{name: "CloudEvents id", ofEvent: true,
		find: func(_ string, in IDInput) (string, error) {
			if in.Attributes["id"] == "" {
				return "", fmt.Errorf("%w: no CloudEvents attribute id", ErrMissingID)
			}
			return in.Attributes["id"], nil
		}}
}

// SourceAndID takes the CloudEvents attributes "source" and "id", as "{source} {id}". Use it where several producers
// number their events by themselves: CloudEvents makes an id unique only within its source. An event whose source has a
// space, which no URI reference may have, is bad, so two different pairs never make one ID. Both count towards the 200
// characters of an ID. Do not use it where a producer may change its source, for example to its host's name: messages
// that it sends again would be new.
func SourceAndID() IDStrategy {
	return IDStrategy{name: "CloudEvents source and id", ofEvent: true,
		find: func(_ string, in IDInput) (string, error) {
			source, id := in.Attributes["source"], in.Attributes["id"]
			switch {
			case source == "" || id == "":
				return "", fmt.Errorf("%w: no CloudEvents attributes source and id", ErrMissingID)
			case strings.Contains(source, " "):
				return "", malformed("source %q has a space, which no URI reference may have", brief.Name(source))
			}
			return source + " " + id, nil
		}}
}

// HeaderID takes the first header that exists and is not empty. It matches each name exactly and then regardless of
// case, before it tries the next name. Of several headers of one name the first counts. The value is taken byte for
// byte: white space and quotes are part of the ID. Without names it uses "MessageId" and Debezium's "id", which is the
// default for plain records. An empty name is an error at start. Do not use it if producers set a new header value each
// time they resend: duplicates would go unnoticed.
func HeaderID(names ...string) IDStrategy {
	if len(names) == 0 {
		names = []string{defaultIDHeader, debeziumIDHeader}
	}
	var err error
	if slices.ContainsFunc(names, func(name string) bool { return strings.TrimSpace(name) == "" }) {
		err = fmt.Errorf("HeaderID has names %q: must be names of headers", names)
	}
	return IDStrategy{name: fmt.Sprintf("header %q", names), err: err,
		find: func(_ string, in IDInput) (string, error) {
			for _, name := range names {
				if value := header(in.Record.Headers, name); value != "" {
					return value, nil
				}
			}
			return "", fmt.Errorf("%w: no header %q", ErrMissingID, names)
		}}
}

// CorrelationID takes the header of that name ("CorrelationId" if name is empty) and prefixes it with "{channel}:". Do
// not use it where one correlation ID covers several messages of the channel: all but the first would be taken for
// duplicates.
func CorrelationID(name string) IDStrategy {
	if name == "" {
		name = defaultCorrelationHeader
	}
	return IDStrategy{name: fmt.Sprintf("correlation ID header %q", name), ofChannel: true,
		find: func(channel string, in IDInput) (string, error) {
			value := header(in.Record.Headers, name)
			if value == "" {
				return "", fmt.Errorf("%w: no header %q", ErrMissingID, name)
			}
			return channel + ":" + value, nil
		}}
}

// KafkaKey takes the record's key, prefixed with "{channel}:". Do not use it for keys that recur, such as the ID of the
// entity that a message is about: all but its first message would be taken for duplicates. Do not use it for binary
// keys either, because an ID must be text: encode those with Func.
func KafkaKey() IDStrategy {
	return IDStrategy{name: "Kafka key", ofChannel: true, find: func(channel string, in IDInput) (string, error) {
		if len(in.Record.Key) == 0 {
			return "", fmt.Errorf("%w: the record has no key", ErrMissingID)
		}
		return channel + ":" + string(in.Record.Key), nil
	}}
}

// KafkaCoordinates builds the ID from the record's place: "{topic}/{partition}/{offset}@{timestamp ms}". Do not use it
// if producers may send a message twice: the copies have different coordinates. Do not use it for records of other
// transports either: without a topic the ID is missing.
func KafkaCoordinates() IDStrategy {
	return IDStrategy{name: "Kafka coordinates", find: func(_ string, in IDInput) (string, error) {
		if in.Record.Topic == "" { // all such records would have the same place
			return "", fmt.Errorf("%w: the message has no Kafka coordinates", ErrMissingID)
		}
		return coordinates(in.Record), nil
	}}
}

// Func calls find for the ID of each message: of a plain record, of an event, and of each event of a batch. It must be
// deterministic and safe for concurrent use. An empty result is a missing ID. An error or a panic makes the message
// invalid. find must not change what it gets.
//
// Events of one batch need different IDs. Those for which find returns the same one are refused with ErrSharedID. Do
// not use Func where another strategy does the same.
func Func(find func(IDInput) (string, error)) IDStrategy {
	return IDStrategy{name: "function", ofEvent: true, ofData: true,
		find: func(_ string, in IDInput) (id string, err error) {
			err = routine.Protect("the channel's ID function", func() error {
				if id, err = find(in); err != nil {
					return fmt.Errorf("the channel's ID function: %w", err)
				}
				return nil
			})
			if err != nil {
				return "", err
			}
			return id, nil
		}}
}

// coordinates returns the place of a record. The timestamp distinguishes a topic from a deleted one of the same name.
func coordinates(r Record) string {
	return r.Topic + "/" + strconv.Itoa(r.Partition) + "/" + strconv.FormatInt(r.Offset, 10) +
		"@" + strconv.FormatInt(r.Timestamp.UnixMilli(), 10)
}

// header returns the first header of exactly that name, or else the first whose name differs only in case, "" if there
// is none. Empty headers are ignored.
func header(headers []handler.Header, name string) string {
	other := -1
	for i, h := range headers {
		if len(h.Value) == 0 {
			continue
		}
		if h.Key == name {
			return string(h.Value)
		}
		if other < 0 && strings.EqualFold(h.Key, name) {
			other = i
		}
	}
	if other < 0 {
		return ""
	}
	return string(headers[other].Value)
}

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
			in.Attributes, in.Data = events[0].event, events[0].content
		}
	}
	return s.orDefault(in).checked(channel, in)
}

// FindIn returns the ID of a decoded message, from its properties and, if NeedsData is true, its content.
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
