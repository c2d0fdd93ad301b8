// Package properties has the stored form of messages' properties and of headers.
package properties

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/handler"
)

// ReplayOf is the attribute of a replayed message that has the ID of its original.
const ReplayOf = "inboxreplayof"

// storedProperties is the stored form. Text stays readable for an operator, and everything else exact: a string that is
// not valid UTF-8 is stored as base64 beside it.
type storedProperties struct {
	Channel    string            `json:"channel,omitempty"`
	Headers    []storedHeader    `json:"headers,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Kafka      *storedKafka      `json:"kafka,omitempty"`
	Accept     string            `json:"accept_traceparent,omitempty"`
	Sealed     *Seal             `json:"sealed,omitempty"`
}

type storedHeader struct {
	Key      *string `json:"k,omitempty"`
	KeyBytes []byte  `json:"kb,omitempty"`
	storedBytes
}

type storedKafka struct {
	Topic     string       `json:"topic"`
	Partition int          `json:"partition"`
	Offset    int64        `json:"offset"`
	Timestamp int64        `json:"timestamp_ms"`
	Key       *storedBytes `json:"key,omitempty"`
	Tombstone bool         `json:"tombstone,omitempty"`
	Index     int          `json:"index,omitempty"`
}

// storedBytes is text in "v" or other bytes in "b"; nil bytes have neither.
type storedBytes struct {
	Text  *string `json:"v,omitempty"`
	Bytes []byte  `json:"b,omitempty"`
}

func storeBytes(b []byte) storedBytes {
	switch {
	case b == nil:
		return storedBytes{}
	case utf8.Valid(b):
		text := string(b)
		return storedBytes{Text: &text}
	default:
		return storedBytes{Bytes: b}
	}
}

func (s storedBytes) bytes() []byte {
	if s.Text != nil {
		return []byte(*s.Text)
	}
	return s.Bytes
}

// Serialize returns p as the JSON that is stored with the message. It fails only if the channel, the topic, the
// traceparent or an attribute is not valid UTF-8.
func Serialize(p handler.Properties) (string, error) {
	if serialized, ok := writeProperties(p); ok {
		return serialized, nil
	}
	return marshal(p)
}

func marshal(p handler.Properties) (string, error) {
	if !utf8.ValidString(p.Channel) {
		return "", fmt.Errorf("channel %q is not valid UTF-8", p.Channel)
	}
	if !utf8.ValidString(p.Traceparent) {
		return "", fmt.Errorf("traceparent %q is not valid UTF-8", p.Traceparent)
	}
	for name, value := range p.Attributes {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return "", fmt.Errorf("attribute %q is not valid UTF-8", name)
		}
	}
	stored := storedProperties{Channel: p.Channel, Attributes: p.Attributes, Accept: p.Traceparent}
	stored.Headers = storeHeaders(p.Headers)
	if k := p.Kafka; k != nil {
		if !utf8.ValidString(k.Topic) {
			return "", fmt.Errorf("topic %q is not valid UTF-8", k.Topic)
		}
		stored.Kafka = &storedKafka{Topic: k.Topic, Partition: k.Partition, Offset: k.Offset,
			Timestamp: k.Timestamp.UnixMilli(), Tombstone: k.Tombstone, Index: k.Index}
		if k.Key != nil {
			key := storeBytes(k.Key)
			stored.Kafka.Key = &key
		}
	}
	out, err := json.Marshal(stored)
	if err != nil {
		return "", fmt.Errorf("serialize properties: %w", err)
	}
	return string(out), nil
}

// Parse is the inverse of Serialize.
func Parse(serialized string) (handler.Properties, error) {
	p, _, err := ParseSealed(serialized)
	return p, err
}

// ParseSealed is Parse, and returns how the message's content is sealed.
func ParseSealed(serialized string) (handler.Properties, Seal, error) {
	if p, seal, ok := scanProperties(serialized); ok {
		return p, seal, nil
	}
	return decodeProperties(serialized)
}

// ChannelBytes is how much of the stored form Channel needs: its first member has at most 200 characters of 12 bytes.
const ChannelBytes = 2500

// Channel returns the channel in the beginning of the stored form, which may be cut after ChannelBytes. It returns ""
// if that does not begin with one.
func Channel(beginning string) string {
	d := json.NewDecoder(strings.NewReader(beginning))
	for _, expected := range []json.Token{json.Delim('{'), "channel"} {
		if token, err := d.Token(); err != nil || token != expected {
			return ""
		}
	}
	token, err := d.Token()
	channel, ok := token.(string)
	if err != nil || !ok {
		return ""
	}
	return channel
}

func decodeProperties(serialized string) (handler.Properties, Seal, error) {
	var stored storedProperties
	if err := json.Unmarshal([]byte(serialized), &stored); err != nil {
		return handler.Properties{}, Seal{}, fmt.Errorf("stored properties are unreadable: %w", err)
	}
	headers, err := loadHeaders(stored.Headers)
	if err != nil {
		return handler.Properties{}, Seal{}, err
	}
	p := handler.Properties{Channel: stored.Channel, Headers: headers, Attributes: stored.Attributes,
		Traceparent: stored.Accept}
	if k := stored.Kafka; k != nil {
		p.Kafka = &handler.KafkaCoordinates{Topic: k.Topic, Partition: k.Partition, Offset: k.Offset,
			Timestamp: time.UnixMilli(k.Timestamp).UTC(), Tombstone: k.Tombstone, Index: k.Index}
		if k.Key != nil {
			p.Kafka.Key = k.Key.bytes()
		}
	}
	var seal Seal
	if stored.Sealed != nil {
		seal = *stored.Sealed
	}
	return p, seal, nil
}

// SerializeHeaders returns headers as the JSON stored with a rejected record.
func SerializeHeaders(headers []handler.Header) string {
	return toJSON(storeHeaders(headers))
}

func toJSON(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen: there are only strings, bytes and numbers
	}
	return string(out)
}

// rawHeaders is the stored form of headers in one piece. It is a JSON object, while SerializeHeaders writes an array.
type rawHeaders struct {
	Raw []byte `json:"raw"`
}

// ErrRawHeaders says that a rejected record had too many headers to be read. They are kept in one piece (see
// RawHeaders).
var ErrRawHeaders = errors.New("stored headers were too many to be read and are kept in one piece")

// SerializeRawHeaders is SerializeHeaders for headers that were not read. raw is their part of Kafka's record format.
func SerializeRawHeaders(raw []byte) string {
	return toJSON(rawHeaders{raw})
}

// CutError says that only the beginning of a rejected record is kept, and describes the whole record (contract 7.4).
type CutError struct {
	// KeyBytes, ValueBytes and HeadersBytes are the sizes in the whole record. SHA256 is the hash of its whole value,
	// in hexadecimal.
	KeyBytes     int    `json:"key_bytes"`
	ValueBytes   int    `json:"value_bytes"`
	HeadersBytes int    `json:"headers_bytes"`
	SHA256       string `json:"value_sha256"`
}

// Error describes the record.
func (e *CutError) Error() string {
	return fmt.Sprintf("only the beginning of the record is kept, and it cannot be accepted again: it had %d bytes of key, "+
		"%d of value (SHA-256 %s) and %d of headers", e.KeyBytes, e.ValueBytes, e.SHA256, e.HeadersBytes)
}

// SerializeCut stands in place of a cut record's headers, which are not kept.
func SerializeCut(e CutError) string {
	return toJSON(cutRecord{&e})
}

type cutRecord struct {
	Cut *CutError `json:"cut"`
}

// Cut returns the *CutError that SerializeCut wrote, nil if another function wrote the text.
func Cut(serialized string) error {
	serialized, _ = SealOfRejected(serialized)
	var stored cutRecord
	if !strings.HasPrefix(serialized, `{"cut":`) || json.Unmarshal([]byte(serialized), &stored) != nil || stored.Cut == nil {
		return nil
	}
	return stored.Cut
}

// RawHeaders is the inverse of SerializeRawHeaders; ok is false if SerializeHeaders wrote the text. It returns a
// *CutError if SerializeCut wrote it.
func RawHeaders(serialized string) (raw []byte, ok bool, err error) {
	serialized, _ = SealOfRejected(serialized)
	if !strings.HasPrefix(serialized, "{") {
		return nil, false, nil
	}
	if err := Cut(serialized); err != nil {
		return nil, true, err
	}
	var stored rawHeaders
	if err := json.Unmarshal([]byte(serialized), &stored); err != nil {
		return nil, true, fmt.Errorf("stored headers are unreadable: %w", err)
	}
	return stored.Raw, true, nil
}

// ParseHeaders is the inverse of SerializeHeaders. It returns ErrRawHeaders if SerializeRawHeaders wrote the text, and
// a *CutError if SerializeCut did.
func ParseHeaders(serialized string) ([]handler.Header, error) {
	serialized, _ = SealOfRejected(serialized)
	if err := Cut(serialized); err != nil {
		return nil, err
	}
	if strings.HasPrefix(serialized, "{") {
		return nil, ErrRawHeaders
	}
	var stored []storedHeader
	if err := json.Unmarshal([]byte(serialized), &stored); err != nil {
		return nil, fmt.Errorf("stored headers are unreadable: %w", err)
	}
	return loadHeaders(stored)
}

// storeHeaders returns the storable form of headers.
func storeHeaders(headers []handler.Header) []storedHeader {
	stored := make([]storedHeader, 0, len(headers))
	for _, h := range headers {
		s := storedHeader{storedBytes: storeBytes(h.Value)}
		if utf8.ValidString(h.Key) {
			s.Key = &h.Key
		} else {
			s.KeyBytes = []byte(h.Key)
		}
		stored = append(stored, s)
	}
	return stored
}

func loadHeaders(stored []storedHeader) ([]handler.Header, error) {
	if len(stored) == 0 {
		return nil, nil
	}
	headers := make([]handler.Header, 0, len(stored))
	for _, s := range stored {
		h := handler.Header{Value: s.bytes()}
		switch {
		case s.Key != nil:
			h.Key = *s.Key
		case s.KeyBytes != nil:
			h.Key = string(s.KeyBytes)
		default:
			return nil, errors.New("stored headers are unreadable: header without a name")
		}
		headers = append(headers, h)
	}
	return headers, nil
}

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
