package kafkawire

import (
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// Walk calls each for the records of a batch, in order. content is the batch's content, decompressed, and the records
// share its memory. A nil each only checks that all records can be read. The error comes from each, or is
// ErrUnreadable. If a record has more headers than maxHeaders, they are left unread.
func (b Batch) Walk(content []byte, maxHeaders int, each func(envelope.Record) error) error {
	// A count that is too low would hide records.
	if int64(b.Count)*leastRecord > int64(len(content)) || b.Count == 0 && len(content) > 0 {
		return fmt.Errorf("%w: the batch at offset %d claims to have %d records in %d bytes", ErrUnreadable, b.Base, b.Count,
			len(content))
	}
	c := cursor{rest: content}
	previous := int64(-1)
	var known []handler.Header // of the record before
	for range b.Count {
		r := cursor{rest: c.take(c.varint())}
		r.int8() // no attributes are in use
		sinceFirst, delta := r.varint(), r.varint()
		key, value := r.varBytes(), r.varBytes()
		headers, raw := readHeaders(&r, maxHeaders, each != nil, known)
		if c.short || r.short || len(r.rest) > 0 || delta <= previous || delta > b.Last-b.Base {
			return fmt.Errorf("%w: a record behind offset %d of the batch at %d", ErrUnreadable, b.Base+previous, b.Base)
		}
		previous, known = delta, headers
		if each == nil {
			continue
		}
		at := b.firstTime + sinceFirst
		if b.appended {
			at = b.maxTime
		}
		if err := each(envelope.Record{Offset: b.Base + delta, Timestamp: timestamp(at), Key: key, Value: value,
			Headers: headers, RawHeaders: raw}); err != nil {
			return err
		}
	}
	if len(c.rest) > 0 {
		return fmt.Errorf("%w: %d bytes are left behind the last of the %d records at offset %d", ErrUnreadable, len(c.rest),
			b.Count, b.Base)
	}
	return nil
}

// readHeaders reads a record's headers, or skips them if they are not wanted or more than limit. In the latter case raw
// holds them unread. The number of headers that a record claims never sizes an allocation unchecked. A header shares
// its name with the one at the same place of known, if that has the same name: most records of a batch have the same
// headers.
func readHeaders(r *cursor, limit int, wanted bool, known []handler.Header) (headers []handler.Header, raw []byte) {
	const least = 2
	all := r.rest
	count := r.varint()
	if count < 0 || count > int64(len(r.rest))/least {
		r.short = true
		return nil, nil
	}
	if tooMany := count > int64(limit); wanted && tooMany {
		wanted, raw = false, all
	}
	if wanted && count > 0 {
		headers = make([]handler.Header, 0, count)
	}
	for range count {
		key, value := r.varBytes(), r.varBytes()
		if key == nil {
			r.short = true
		}
		if r.short {
			return nil, nil
		}
		if !wanted {
			continue
		}
		h := handler.Header{Value: value}
		if i := len(headers); i < len(known) && known[i].Key == string(key) {
			h.Key = known[i].Key
		} else {
			h.Key = string(key)
		}
		headers = append(headers, h)
	}
	return headers, raw
}

// timestamp converts a record's time from milliseconds.
func timestamp(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// Owned returns a copy of the record that shares no memory with its batch.
func Owned(r envelope.Record) envelope.Record {
	size := len(r.Key) + len(r.Value) + len(r.RawHeaders)
	for _, h := range r.Headers {
		size += len(h.Value)
	}
	memory := make([]byte, 0, size)
	keep := func(b []byte) []byte {
		if b == nil {
			return nil // nil differs from empty
		}
		from := len(memory)
		memory = append(memory, b...)
		return memory[from:len(memory):len(memory)]
	}
	r.Key, r.Value, r.RawHeaders = keep(r.Key), keep(r.Value), keep(r.RawHeaders)
	for i := range r.Headers { // the slice was made for this record
		r.Headers[i].Value = keep(r.Headers[i].Value)
	}
	return r
}
