package envelope

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/columns"
)

// ErrTooLarge means that a record exceeds a bound of the decoder, which the error names: MaxHeaders, MaxEvents,
// MaxAttributes or MaxRecordBytes (contract 4.5).
var ErrTooLarge = errors.New("record is too large")

// The defaults of the bounds.
const (
	defaultMaxHeaders     = 1000
	defaultMaxEvents      = 10_000
	defaultMaxAttributes  = 100
	defaultMaxRecordBytes = 16 << 20
)

// Approximate costs of a record, and of each of its messages, headers and attributes, in addition to their bytes.
const (
	recordOverhead    = 192
	messageOverhead   = 448
	headerOverhead    = 48
	attributeOverhead = 64
)

// bounds limit what may result from one record.
type bounds struct{ headers, events, attributes, bytes int }

// defaultBounds are used where no Decoder reads the record.
var defaultBounds = bounds{defaultMaxHeaders, defaultMaxEvents, defaultMaxAttributes, defaultMaxRecordBytes}

func tooMany(n int, what, option string, limit int) error {
	return fmt.Errorf("%w: it has %d %s, more than %s (%d)", ErrTooLarge, n, what, option, limit)
}

func (b bounds) tooBig(bytes int) error {
	return fmt.Errorf("%w: it takes %d bytes and more, MaxRecordBytes are %d", ErrTooLarge, bytes, b.bytes)
}

// Size returns about how many bytes the record takes in memory.
func (r Record) Size() int {
	size := len(r.Key) + len(r.Value) + len(r.RawHeaders) + recordOverhead + len(r.Headers)*headerOverhead
	for _, h := range r.Headers {
		size += len(h.Key) + len(h.Value)
	}
	return size
}

// StoredSize returns an upper bound of the bytes that a row with the record as it is takes.
func (r Record) StoredSize() int {
	return storedWithEach(r) + len(r.Value) + len(r.RawHeaders)/3*4
}

// Size returns about how many bytes the record and its messages take: in memory and, because each message is stored
// with the record's headers and key, in an accept.
func (r Received) Size() int {
	size := r.Record.Size()
	if n := len(r.Messages); n > 1 {
		size += (n - 1) * storedWithEach(r.Record)
	}
	for _, m := range r.Messages {
		size += messageSize(r.Record, m.Content, m.Properties.Attributes)
	}
	return size
}

// messageSize returns what one message adds to its record.
func messageSize(r Record, content []byte, attributes map[string]string) int {
	size := messageOverhead
	if len(content) != len(r.Value) { // a message made of the whole value shares its memory
		size += len(content)
	}
	for name, value := range attributes {
		size += len(name) + len(value) + attributeOverhead
	}
	return size
}

// storedWithEach returns the size of the record's fields that every message is stored with: the key, and the headers as
// JSON.
func storedWithEach(r Record) int {
	size := len(r.Key)
	for _, h := range r.Headers {
		size += headerAsJSON + inJSON(h.Key) + inJSON(h.Value)
	}
	return size
}

// headerAsJSON is how many bytes JSON adds to a header.
const headerAsJSON = len(`{"k":"","v":""},`)

// inJSON returns an upper bound of a text's size in JSON, where much is escaped.
func inJSON[T ~string | ~[]byte](text T) int {
	size := len(text)
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			size += len(`\u0000`) - 1
		} else if c >= utf8.RuneSelf {
			size++ // U+2028 has its own escape, and invalid UTF-8 is encoded as base64
		}
	}
	return size
}

// SizeBound returns an upper bound of the memory that decoding the record takes, beyond its Size, so that the memory
// can be reserved first (contract 7.2). It allocates nothing.
func (d *Decoder) SizeBound(r Record) int {
	b := d.bounds
	if d.check(r) != nil {
		return 0 // it is not decoded
	}
	messages, attributes, content := 1, len(r.Headers), storedWithEach(r)
	if d.cfg.Mode != Plain && looksStructured(r.Headers) {
		objects, members := 0, 0
		for _, c := range r.Value {
			switch c {
			case '{':
				objects++
			case ':':
				members++
			}
		}
		messages = min(max(objects, 1), b.events)
		attributes = min(members, messages*b.attributes)
		// JSON is taken apart twice, into events and into their members.
		content = 2*len(r.Value) + min((messages-1)*storedWithEach(r), b.bytes)
	}
	return messages*messageOverhead + attributes*attributeOverhead + content
}

// check returns an error if the record cannot be decoded at all.
func (d *Decoder) check(r Record) error {
	b := d.bounds
	if n := len(r.Headers); n > b.headers {
		return tooMany(n, "headers", "MaxHeaders", b.headers)
	}
	if size := r.Size(); size > b.bytes {
		return b.tooBig(size)
	}
	return nil
}

// withHeaders reads the record's headers if its maker left them unread because there were too many.
func (d *Decoder) withHeaders(r Record) (Record, error) {
	if r.RawHeaders == nil {
		return r, nil
	}
	b := d.bounds
	if n := countHeaders(r.RawHeaders); n > b.headers {
		return r, tooMany(n, "headers", "MaxHeaders", b.headers)
	}
	headers, err := readHeaders(r.RawHeaders)
	if err != nil {
		return r, err
	}
	r.Headers, r.RawHeaders = headers, nil
	return r, nil
}

// countHeaders returns how many headers there are, as their first number says.
func countHeaders(raw []byte) int {
	n, _ := binary.Varint(raw)
	return int(max(n, 0))
}

var errRawHeaders = errors.New("its raw headers are not what Kafka's record format says")

// readHeaders reads headers in Kafka's record format: their number, and for each the length of its name, the name, the
// length of its value and the value. A length of -1 is null. Numbers are varints.
func readHeaders(raw []byte) ([]handler.Header, error) {
	bad := false
	number := func() int64 {
		n, size := binary.Varint(raw)
		bad = bad || size <= 0
		raw = raw[max(size, 0):]
		return n
	}
	text := func() []byte {
		n := number()
		if bad = bad || n < -1 || n > int64(len(raw)); bad || n == -1 {
			return nil
		}
		taken := raw[:n:n]
		raw = raw[n:]
		return taken
	}
	const least = 2 // bytes of a header
	count := number()
	if bad || count < 0 || count > int64(len(raw))/least {
		return nil, errRawHeaders
	}
	headers := make([]handler.Header, 0, count)
	for range count {
		key, value := text(), text()
		bad = bad || key == nil
		headers = append(headers, handler.Header{Key: string(key), Value: value})
	}
	if bad || len(raw) > 0 {
		return nil, errRawHeaders
	}
	return headers, nil
}

// elements counts the elements of a JSON array or the members of a JSON object, before memory is taken for them. For
// anything else the result means nothing.
func elements(raw []byte) int {
	n, depth, quoted, empty := 0, 0, false, true
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if quoted {
			switch c {
			case '\\':
				i++
			case '"':
				quoted = false
			}
			continue
		}
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		case '[', '{':
			if depth > 0 {
				empty = false
			}
			depth++
			continue
		case ']', '}':
			depth--
			continue
		case '"':
			quoted = true
		case ',':
			if depth == 1 {
				n++
			}
		}
		empty = false
	}
	if empty {
		return 0
	}
	return n + 1
}

// checkMediaType refuses a content type that no column can hold before it is parsed: it may have many parameters.
func checkMediaType(contentType string) error {
	return checkLength("content type", contentType, columns.MaxContentType)
}

func checkLength(what, text string, limit int) error {
	if n := utf8.RuneCountInString(text); n > limit {
		return fmt.Errorf("%w: its %s has %d characters: must have %d at most", ErrTooLarge, what, n, limit)
	}
	return nil
}
