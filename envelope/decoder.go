package envelope

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Mode is what a channel's records are (contract 4.5).
type Mode string

// The modes of a Decoder.
const (
	// Auto recognizes CloudEvents by their headers ("ce_specversion", or a content type of application/cloudevents…).
	// All other records are plain.
	Auto Mode = "auto"
	// CloudEvents accepts only CloudEvents 1.0. Other records are bad.
	CloudEvents Mode = "cloudevents"
	// Plain takes every record as it is: value = payload, headers = properties, even if it looks like a CloudEvent.
	Plain Mode = "plain"
)

// TombstonePolicy decides what happens to records without a value, by which producers delete a key from a compacted
// topic (contract 4.5). An empty value is a value.
type TombstonePolicy string

// The policies for tombstones.
const (
	// TombstoneSkip passes them, counts them as inbox.records.empty and logs the first of each topic.
	TombstoneSkip TombstonePolicy = "skip"
	// TombstoneHandle makes messages of them as of all other records. They need an ID and a type.
	TombstoneHandle TombstonePolicy = "handle"
	// TombstoneReject makes them bad records, which are kept or published as such. They never count for HaltAtBadRecords.
	TombstoneReject TombstonePolicy = "reject"
)

const (
	transport         = "kafka"
	defaultTypeHeader = "MessageType"
)

// DecoderConfig configures how records become messages. The zero value is usable and equals DefaultDecoderConfig.
type DecoderConfig struct {
	// Mode is what the records are. Default Auto. Set it to refuse records of the other kind. It does not make decoding
	// faster.
	Mode Mode `yaml:"mode" env:"MODE"`

	// ID is where message IDs come from. Default CloudEventsID for CloudEvents and HeaderID() for plain records. Any
	// other strategy overrides a CloudEvent's own id: set it only if that id cannot be trusted.
	ID IDStrategy `yaml:"-" env:"-"`
	// AllowMissingID gives a message without ID the ID "{topic}/{partition}/{offset}@{timestamp ms}" instead of
	// rejecting it, and logs that once per channel. Do not set it if producers resend: their copies have different
	// coordinates and are all processed (contract 4.4).
	AllowMissingID bool `yaml:"allow_missing_id" env:"ALLOW_MISSING_ID"`

	// Tombstones says what happens to records without a value, in every delivery mode: TombstoneSkip, TombstoneHandle or
	// TombstoneReject. Do not leave it at Skip where a deletion, or a CloudEvent or an outbox event without data, is a
	// message: set Handle. Handlers then get an empty body, which handler.JSON cannot decode, and know a tombstone by
	// Properties.Kafka.Tombstone. Default TombstoneSkip (contract 4.5).
	Tombstones TombstonePolicy `yaml:"tombstones" env:"TOMBSTONES"`

	// TypeHeader names the header with a plain record's type. It is matched exactly first and then regardless of case.
	// Of several such headers, the first that is not empty counts. Default "MessageType", or none if Type is set. It
	// has no effect on CloudEvents.
	//
	// Debezium's outbox event router sets the header "id" by itself. Configure it to place the type in a header
	// (table.fields.additional.placement: "type:header:eventType") and name that header here.
	TypeHeader string `yaml:"type_header" env:"TYPE_HEADER"`
	// Type is the type of plain records, or of those without TypeHeader if both are set. Default none: a record without
	// type is bad. Do not set it for channels whose records have different types.
	Type string `yaml:"type" env:"TYPE"`
	// Source is the source of plain records. Default "kafka:{topic}". Do not change it later: messages with known IDs
	// would then have another source, which is a conflict (contract 4.3).
	Source string `yaml:"source" env:"SOURCE"`
	// ContentType is the content type of plain records without a "content-type" header. Default none.
	ContentType string `yaml:"content_type" env:"CONTENT_TYPE"`

	// MaxHeaders, MaxEvents, MaxAttributes and MaxRecordBytes bound the result of one record. A record that exceeds one
	// is bad (contract 4.5). They are checked before memory is taken: a few compressed kilobytes can hold millions of
	// elements.
	//
	// MaxHeaders bounds a record's headers. Default 1,000. Producers usually write tens. If a record has more, its
	// headers are not read and are kept as one value.
	MaxHeaders int `yaml:"max_headers" env:"MAX_HEADERS"`
	// MaxEvents bounds the events of a batch of CloudEvents. Default 10,000. A record's offset is committed once all of
	// them are stored, in as many transactions as that takes.
	MaxEvents int `yaml:"max_events" env:"MAX_EVENTS"`
	// MaxAttributes bounds the attributes of one event, extensions included. Default 100. CloudEvents itself has nine.
	MaxAttributes int `yaml:"max_attributes" env:"MAX_ATTRIBUTES"`
	// MaxRecordBytes bounds a record together with its messages, counted as BufferBytes is: decompressed bytes, some
	// hundred more for each message, and the headers and the key again for each message, because each is stored with
	// them. A larger record halts its partition, because it cannot be kept either (contract 7.4). Default 16 MiB, which
	// is sixteen times what Kafka's producers and brokers allow by default. Do not set it below what your producers may
	// write (max.request.size).
	MaxRecordBytes int `yaml:"max_record_bytes" env:"MAX_RECORD_BYTES"`

	// NotBeforeHeader names the header, or the CloudEvents attribute, with the time before which no handler runs the
	// message: an RFC 3339 timestamp or Unix milliseconds. An attribute of that name counts before a header, which holds
	// for every event of a batch. Headers are matched exactly first and then regardless of case. A message without it is
	// due at once, and any other text makes its record bad. Default none. Do not set it on an Inline or Direct channel,
	// where it is an error at start (contract 4.8).
	NotBeforeHeader string `yaml:"not_before_header" env:"NOT_BEFORE_HEADER"`
	// NotBefore returns that time instead of NotBeforeHeader; the zero time is none. It must be safe for concurrent use.
	// An error or a panic makes the record bad. Default none. Do not set both.
	NotBefore func(IDInput) (time.Time, error) `yaml:"-" env:"-"`

	// OrderingKey returns a record's ordering key, which decides its lane. Nil means no lane. Default the Kafka key. It
	// must be safe for concurrent use, and a panic makes the record bad. Handlers that are not ordered ignore it
	// (contract 5.12).
	OrderingKey func(Record) []byte `yaml:"-" env:"-"`
}

// DefaultDecoderConfig returns the defaults of the contract.
func DefaultDecoderConfig() DecoderConfig {
	return DecoderConfig{Mode: Auto, Tombstones: TombstoneSkip, MaxHeaders: defaultMaxHeaders, MaxEvents: defaultMaxEvents,
		MaxAttributes: defaultMaxAttributes, MaxRecordBytes: defaultMaxRecordBytes}
}

// Validate joins an error for every field that is out of range. Each one names the field, its value and what is
// allowed.
func (c DecoderConfig) Validate() error {
	var all []error
	switch c.Mode {
	case "", Auto, CloudEvents, Plain:
	default:
		all = append(all, fmt.Errorf("option Decoder.Mode = %q: must be %s, %s or %s", c.Mode, Auto, CloudEvents, Plain))
	}
	switch c.Tombstones {
	case "", TombstoneSkip, TombstoneHandle, TombstoneReject:
	default:
		all = append(all, fmt.Errorf("option Decoder.Tombstones = %q: must be %s, %s or %s", c.Tombstones, TombstoneSkip,
			TombstoneHandle, TombstoneReject))
	}
	if err := c.ID.Err(); err != nil {
		all = append(all, fmt.Errorf("decoder ID: %w", err))
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"Type", c.Type, columns.MaxType},
		{"Source", c.Source, columns.MaxSource},
		{"ContentType", c.ContentType, columns.MaxContentType},
	} {
		if err := checkText(f.value); err != nil {
			all = append(all, fmt.Errorf("decoder %s is %q, it %w", f.name, f.value, err))
		} else if n := utf8.RuneCountInString(f.value); n > f.limit {
			all = append(all, fmt.Errorf("option Decoder.%s has %d characters: must have 0 to %d", f.name, n, f.limit))
		}
	}
	for _, f := range []struct {
		name       string
		value, max int
	}{
		{"MaxHeaders", c.MaxHeaders, 1_000_000},
		{"MaxEvents", c.MaxEvents, 1_000_000},
		{"MaxAttributes", c.MaxAttributes, 1_000_000},
		{"MaxRecordBytes", c.MaxRecordBytes, 1 << 30},
	} {
		if f.value < 0 || f.value > f.max { // zero is the default
			all = append(all, fmt.Errorf("option Decoder.%s = %d: must be 1 to %d", f.name, f.value, f.max))
		}
	}
	if c.NotBefore != nil && c.NotBeforeHeader != "" {
		all = append(all, fmt.Errorf("option Decoder.NotBeforeHeader = %q: must be empty with Decoder.NotBefore",
			c.NotBeforeHeader))
	}
	return errors.Join(all...)
}

// HasNotBefore reports whether messages may have a time before which they do not run.
func (c DecoderConfig) HasNotBefore() bool { return c.NotBefore != nil || c.NotBeforeHeader != "" }

// withDefaults returns c with defaults for the fields that are not set.
func (c DecoderConfig) withDefaults() DecoderConfig {
	c.Mode, c.Tombstones = cmp.Or(c.Mode, Auto), cmp.Or(c.Tombstones, TombstoneSkip)
	if c.TypeHeader == "" && c.Type == "" {
		c.TypeHeader = defaultTypeHeader
	}
	if c.OrderingKey == nil {
		c.OrderingKey = func(r Record) []byte { return r.Key }
	}
	c.MaxHeaders, c.MaxEvents = cmp.Or(c.MaxHeaders, defaultMaxHeaders), cmp.Or(c.MaxEvents, defaultMaxEvents)
	c.MaxAttributes, c.MaxRecordBytes = cmp.Or(c.MaxAttributes, defaultMaxAttributes), cmp.Or(c.MaxRecordBytes,
		defaultMaxRecordBytes)
	return c
}

// HeaderLimit returns MaxHeaders, or its default.
func (c DecoderConfig) HeaderLimit() int { return cmp.Or(c.MaxHeaders, defaultMaxHeaders) }

// RecordLimit returns MaxRecordBytes.
func (d *Decoder) RecordLimit() int { return d.cfg.MaxRecordBytes }

// Decoder turns records into messages. It is safe for concurrent use.
type Decoder struct {
	cfg    DecoderConfig
	bounds bounds // of cfg
	log    *zap.Logger
	warned sync.Map // the channels whose missing IDs were logged
	passed sync.Map // the topics whose skipped tombstones were logged
}

// NewDecoder returns a Decoder. A nil log logs nothing. It fails only on an invalid config.
func NewDecoder(cfg DecoderConfig, log *zap.Logger) (*Decoder, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = zap.NewNop()
	}
	cfg = cfg.withDefaults()
	return &Decoder{cfg: cfg, log: log,
		bounds: bounds{cfg.MaxHeaders, cfg.MaxEvents, cfg.MaxAttributes, cfg.MaxRecordBytes}}, nil
}

// Decode turns a record into its messages. It never fails as a whole: if no message can be made of the record, the
// result has Err. A tombstone that is skipped has neither messages nor Err. A message without usable ID has IDErr,
// because routing comes first (contract 4.6). The messages share memory with the record, which must not be changed.
func (d *Decoder) Decode(channel string, r Record) (received Received) {
	defer func() {
		if p := recover(); p != nil { // in a function of the application, or a bug of ours
			received = Received{Record: r, Err: fmt.Errorf("decoding panicked: %v", p)}
		}
	}()
	if r.Value == nil && d.cfg.Tombstones != TombstoneHandle {
		return d.withoutValue(channel, r)
	}
	r, err := d.withHeaders(r)
	if err == nil {
		err = d.check(r)
	}
	if err != nil {
		return Received{Record: r, Err: err}
	}
	var usual [1]decoded // on the stack
	messages, err := d.decode(r, usual[:0])
	if err == nil && len(messages) == 1 && messages[0].event != nil { // attributes of a batch are counted while it is read
		if size := r.Size() + messageSize(r, messages[0].content, messages[0].event); size > d.cfg.MaxRecordBytes {
			err = d.bounds.tooBig(size)
		}
	}
	if err != nil {
		return Received{Record: r, Err: err}
	}
	for _, m := range messages {
		if err := m.checkNames(); err != nil {
			return Received{Record: r, Err: err}
		}
	}
	out := Received{Record: r, Messages: make([]handler.RawMessage, len(messages))}
	for i, m := range messages {
		raw := handler.RawMessage{
			Channel: channel, Type: m.typ, Source: m.source, ContentType: m.contentType, Content: m.content,
			Transport: transport, OrderingKey: d.cfg.OrderingKey(r),
			Properties: handler.Properties{
				Channel: channel, Headers: r.Headers,
				Kafka: &handler.KafkaCoordinates{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp,
					Key: r.Key, Tombstone: r.Value == nil, Index: i},
			},
		}
		in := IDInput{Record: r, Data: m.content, Index: i}
		if m.event != nil {
			raw.Properties.Attributes, in.Attributes = m.event, m.event
		}
		if raw.NotBefore, err = d.notBefore(in); err != nil {
			return Received{Record: r, Err: err}
		}
		raw.ID, raw.IDErr = d.findID(channel, in, len(messages))
		out.Messages[i] = raw
	}
	if d.cfg.ID.ofData {
		refuseShared(out.Messages)
	}
	return out
}

// withoutValue returns what becomes of a tombstone that is not handled.
func (d *Decoder) withoutValue(channel string, r Record) Received {
	if d.cfg.Tombstones == TombstoneReject {
		return Received{Record: r, Err: ErrTombstone}
	}
	if _, logged := d.passed.LoadOrStore(r.Topic, true); !logged {
		d.log.Warn("inbox: records without a value (tombstones) are skipped and counted, see option Decoder.Tombstones; logged once",
			zap.String(telemetry.FieldChannel, channel), zap.String(telemetry.FieldTopic, r.Topic),
			zap.Int(telemetry.FieldPartition, r.Partition), zap.Int64(telemetry.FieldOffset, r.Offset))
	}
	return Received{Record: r}
}

// refuseShared refuses the messages of a record for which a function found the same ID. The second would be taken for a
// duplicate of the first, and be lost.
func refuseShared(messages []handler.RawMessage) {
	if len(messages) < 2 {
		return
	}
	first := make(map[string]int, len(messages))
	for i := range messages {
		m := &messages[i]
		if m.IDErr != nil {
			continue
		}
		if k, known := first[m.ID]; known {
			m.IDErr = fmt.Errorf("%w: the channel's ID function finds %q for events %d and %d of a batch", ErrSharedID, m.ID,
				k+1, i+1)
			messages[k].IDErr = m.IDErr
			continue
		}
		first[m.ID] = i
	}
}

// decoded is one message of a record, without its ID.
type decoded struct {
	typ, source, contentType string
	content                  []byte
	event                    cloudEvent // nil for plain records
}

// checkNames refuses a type and a source that no column can hold. It precedes routing, in every delivery mode. So the
// names that are logged or remembered of an unrouted message are bounded.
func (m *decoded) checkNames() error {
	return cmp.Or(checkLength("type", m.typ, columns.MaxType), checkLength("source", m.source, columns.MaxSource),
		checkMediaType(m.contentType))
}

// decode returns the record's messages. It may append them to into, which is empty.
func (d *Decoder) decode(r Record, into []decoded) ([]decoded, error) {
	if d.cfg.Mode != Plain {
		events, err := eventsOf(r, d.bounds)
		switch {
		case err != nil || events != nil:
			return events, err
		case d.cfg.Mode == CloudEvents:
			return nil, fmt.Errorf("%w: it has neither header ce_specversion nor content type application/cloudevents",
				ErrNotCloudEvent)
		}
	}
	m, err := d.plain(r)
	return append(into, m), err
}

// plainDefault and eventDefault are the strategies of channels that set none.
var plainDefault, eventDefault = HeaderID(), CloudEventsID()

// findID returns the ID that the strategy found, even if err says that it cannot be a message ID. The message is one of
// n of its record.
func (d *Decoder) findID(channel string, in IDInput, n int) (string, error) {
	strategy, r := d.cfg.ID.orDefault(in), in.Record
	id, err := strategy.checked(channel, in)
	if err == nil && n > 1 && !strategy.ofEvent {
		return id, fmt.Errorf("%w: %s cannot tell the %d events of a batch apart", ErrSharedID, strategy, n)
	}
	if !errors.Is(err, ErrMissingID) {
		return id, err
	}
	if !d.cfg.AllowMissingID {
		return id, fmt.Errorf("%w: set option Decoder.ID to where it is, or Decoder.AllowMissingID", err)
	}
	if _, warned := d.warned.LoadOrStore(channel, true); !warned {
		d.log.Warn("inbox: message without ID gets its coordinates as ID, copies that producers resend will not be recognised; logged once",
			zap.String(telemetry.FieldChannel, channel), zap.String(telemetry.FieldStrategy, strategy.String()),
			zap.String(telemetry.FieldTopic, r.Topic), zap.Int(telemetry.FieldPartition, r.Partition),
			zap.Int64(telemetry.FieldOffset, r.Offset))
	}
	id = coordinates(r)
	if n > 1 {
		id += "#" + strconv.Itoa(in.Index)
	}
	return id, CheckID(id)
}

// notBefore returns the time before which a message does not run; zero if it has none.
func (d *Decoder) notBefore(in IDInput) (time.Time, error) {
	name := d.cfg.NotBeforeHeader
	switch {
	case d.cfg.NotBefore != nil:
		at, err := d.cfg.NotBefore(in)
		if err != nil {
			err = fmt.Errorf("the channel's NotBefore function: %w", err)
		}
		return at, err
	case name == "":
		return time.Time{}, nil
	}
	text := cmp.Or(in.Attributes[name], header(in.Record.Headers, name))
	if text == "" {
		return time.Time{}, nil
	}
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.UnixMilli(ms), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("header or attribute %q (option Decoder.NotBeforeHeader) is %q: must be an RFC 3339 timestamp or Unix milliseconds",
			name, brief.Name(text))
	}
	return at, nil
}

// contentTypeHeader is the name that the CloudEvents Kafka binding and most producers use.
const contentTypeHeader = "content-type"

// plain takes a record as it is.
func (d *Decoder) plain(r Record) (decoded, error) {
	typ := d.cfg.Type
	if d.cfg.TypeHeader != "" {
		if value := header(r.Headers, d.cfg.TypeHeader); value != "" {
			typ = value
		}
		if typ == "" {
			return decoded{}, fmt.Errorf("%w: no header %q: set option Decoder.TypeHeader to the header that has it, or Decoder.Type",
				ErrMissingType, d.cfg.TypeHeader)
		}
	}
	if err := checkText(typ); err != nil {
		return decoded{}, fmt.Errorf("message type %q %w", brief.Name(typ), err)
	}
	source := d.cfg.Source
	if source == "" {
		source = "kafka:" + r.Topic
	}
	contentType := cmp.Or(header(r.Headers, contentTypeHeader), d.cfg.ContentType)
	if err := checkText(contentType); err != nil {
		return decoded{}, fmt.Errorf("content type %q %w", brief.Name(contentType), err)
	}
	return decoded{typ: typ, source: source, contentType: contentType, content: r.Value}, nil
}

// checkText reports what a text column cannot hold.
func checkText(s string) error {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return errors.New("is not valid UTF-8 without NUL")
	}
	return nil
}
