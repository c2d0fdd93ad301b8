package kafkaconsumer

import (
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// walk calls each for the records of a batch, in order; content is the
// batch's, without its compression, and the records share its memory. A nil
// each only checks that all of it can be read. The error is each's own or
// ErrUndecodable.
func (b batch) walk(content []byte, each func(envelope.Record) error) error {
	if b.magic < 2 {
		return b.walkMessages(content, each)
	}
	// A count that is too low would hide records.
	if int64(b.count)*leastRecord > int64(len(content)) || b.count == 0 && len(content) > 0 {
		return fmt.Errorf("%w: the batch at offset %d claims to have %d records in %d bytes", ErrUndecodable, b.base, b.count, len(content))
	}
	c := cursor{rest: content}
	previous := int64(-1)
	for range b.count {
		r := cursor{rest: c.take(c.varint())}
		r.int8() // no attributes are in use
		sinceFirst, delta := r.varint(), r.varint()
		key, value := r.varBytes(), r.varBytes()
		headers := readHeaders(&r, each != nil)
		if c.short || r.short || len(r.rest) > 0 || delta <= previous || delta > b.last-b.base {
			return fmt.Errorf("%w: a record behind offset %d of the batch at %d", ErrUndecodable, b.base+previous, b.base)
		}
		previous = delta
		if each == nil {
			continue
		}
		at := b.firstTime + sinceFirst
		if b.appended {
			at = b.maxTime
		}
		if err := each(envelope.Record{Offset: b.base + delta, Timestamp: timestamp(at), Key: key, Value: value, Headers: headers}); err != nil {
			return err
		}
	}
	if len(c.rest) > 0 {
		return fmt.Errorf("%w: %d bytes are left behind the last of the %d records at offset %d", ErrUndecodable, len(c.rest), b.count, b.base)
	}
	return nil
}

// readHeaders reads a record's headers, or only past them.
func readHeaders(r *cursor, wanted bool) []handler.Header {
	const least = 2
	count := r.varint()
	if count < 0 || count > int64(len(r.rest))/least {
		r.short = true
		return nil
	}
	var headers []handler.Header
	if wanted && count > 0 {
		headers = make([]handler.Header, 0, count)
	}
	for range count {
		key, value := r.varBytes(), r.varBytes()
		if key == nil {
			r.short = true
		}
		if r.short {
			return nil
		}
		if wanted {
			headers = append(headers, handler.Header{Key: string(key), Value: value})
		}
	}
	return headers
}

func timestamp(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// What a record and each of its messages and headers cost beside their bytes,
// roughly.
const (
	recordOverhead  = 192
	messageOverhead = 448
	headerOverhead  = 48
)

func recordSize(r envelope.Record) int {
	size := len(r.Key) + len(r.Value) + recordOverhead + len(r.Headers)*headerOverhead
	for _, h := range r.Headers {
		size += len(h.Key) + len(h.Value)
	}
	return size
}

// messagesSize is what the record's messages cost in addition.
func messagesSize(received envelope.Received) int {
	size := len(received.Messages) * messageOverhead
	for _, m := range received.Messages {
		// A message made of the whole value shares its memory.
		if len(m.Content) != len(received.Record.Value) {
			size += len(m.Content)
		}
		for name, value := range m.Properties.Attributes {
			size += len(name) + len(value) + headerOverhead
		}
	}
	return size
}

// owned is a copy of the record that shares no memory with its batch.
func owned(r envelope.Record) envelope.Record {
	size := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += len(h.Value)
	}
	memory := make([]byte, 0, size)
	keep := func(b []byte) []byte {
		if b == nil {
			return nil // which differs from empty
		}
		from := len(memory)
		memory = append(memory, b...)
		return memory[from:len(memory):len(memory)]
	}
	r.Key, r.Value = keep(r.Key), keep(r.Value)
	for i := range r.Headers { // made for this record
		r.Headers[i].Value = keep(r.Headers[i].Value)
	}
	return r
}
