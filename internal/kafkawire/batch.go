// Package kafkawire encodes and decodes the parts of the protocol that kafka-go leaves to its users or reads without
// bounds: fetch requests and their answers, record batches, decompression, and aborted transactions. It checks every
// answer that kafka-go decodes. It also keeps kafka-go from creating topics, refuses assignments beyond bounds, and
// bounds memory (Budget). It knows no configuration and does not decide what happens to a record.
package kafkawire

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"time"

	"github.com/segmentio/kafka-go/compress"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// ErrUnreadable means that records cannot be read: their checksum, compression or format is wrong, or a batch is larger
// than MaxBatchBytes.
var ErrUnreadable = errors.New("records cannot be read")

// Batch is a record batch as it is stored in the log: records that were written together.
type Batch struct {
	// Base and Last are the first and last offset of the batch. Compaction may have removed any or all of its records.
	Base, Last int64
	// Epoch is the epoch of the leader that wrote the batch, -1 if unknown.
	Epoch                  int32
	codec                  compress.Compression
	appended               bool // whether the records' timestamp is the time at which the broker wrote them
	Transactional, Control bool
	Producer               int64
	// firstTime is the base of the records' timestamps. maxTime is the largest timestamp, or the time of writing. Both
	// are in milliseconds.
	firstTime, maxTime int64
	Count              int
	content            []byte // the records, compressed by codec
}

// The attribute bits of a batch.
const (
	codecMask         = 7
	appendTimeFlag    = 1 << 3
	transactionalFlag = 1 << 4
	controlFlag       = 1 << 5
)

const (
	// BatchPrefix is the size of the base offset and the length of what follows.
	BatchPrefix = 12
	magicAt     = 16 // where all formats have their number
	oldSumAt    = 12 // where formats 0 and 1 have their checksum, which covers everything from magicAt on
	batchHeader = 49 // the size of a batch without records, after its prefix
	leastRecord = 7  // the length of the shortest record
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CutError means that a batch is incomplete: brokers cut a response off at its limit.
type CutError struct {
	// Need is the length of the batch, or of its header if even the header is incomplete.
	Need int
}

// Error says how long the batch is.
func (e *CutError) Error() string { return fmt.Sprintf("a batch of %d bytes is cut off", e.Need) }

// CutBatch returns the first batch and what follows it, and verifies the batch's checksum. The error is a CutError or
// ErrUnreadable.
func CutBatch(from []byte) (b Batch, rest []byte, err error) {
	if len(from) < BatchPrefix {
		return b, nil, &CutError{BatchPrefix + batchHeader}
	}
	base, size := int64(binary.BigEndian.Uint64(from)), int64(int32(binary.BigEndian.Uint32(from[8:])))
	if size <= magicAt-BatchPrefix || base < 0 {
		return b, nil, fmt.Errorf("%w: a batch at offset %d claims to have %d bytes", ErrUnreadable, base, size)
	}
	if size > int64(len(from)-BatchPrefix) {
		return b, nil, &CutError{BatchPrefix + int(size)}
	}
	whole, rest := from[:BatchPrefix+size], from[BatchPrefix+size:]
	switch magic := whole[magicAt]; magic {
	case 2:
		b, err = newBatch(base, whole)
	case 0, 1:
		if sum := binary.BigEndian.Uint32(whole[oldSumAt:]); sum != crc32.ChecksumIEEE(whole[magicAt:]) {
			err = fmt.Errorf("%w: the checksum of the message at offset %d is wrong", ErrUnreadable, base)
			break
		}
		const what = "%w: the message at offset %d is in format %d, of before Kafka 0.11: copy the topic with a newer client"
		err = fmt.Errorf(what, ErrUnreadable, base, magic)
	default:
		err = fmt.Errorf("%w: the batch at offset %d has the unknown format %d", ErrUnreadable, base, magic)
	}
	return b, rest, err
}

// newBatch reads the header of a batch of the current format.
func newBatch(base int64, whole []byte) (b Batch, err error) {
	if len(whole) < BatchPrefix+batchHeader {
		return b, fmt.Errorf("%w: the batch at offset %d has only %d bytes", ErrUnreadable, base, len(whole))
	}
	c := cursor{rest: whole[BatchPrefix:]}
	b.Base, b.Epoch = base, c.int32()
	c.int8() // the format, which is known
	if sum, found := uint32(c.int32()), crc32.Checksum(c.rest, castagnoli); sum != found {
		return b, fmt.Errorf("%w: the checksum of the batch at offset %d is %08x, its content's %08x", ErrUnreadable, base,
			sum, found)
	}
	attributes := c.int16()
	b.codec, b.appended = compress.Compression(attributes&codecMask), attributes&appendTimeFlag != 0
	b.Transactional, b.Control = attributes&transactionalFlag != 0, attributes&controlFlag != 0
	delta := int64(c.int32())
	b.Last = base + delta
	b.firstTime, b.maxTime, b.Producer = c.int64(), c.int64(), c.int64()
	c.take(2 + 4) // only the broker uses the producer's epoch and sequence
	b.Count, b.content = int(c.int32()), c.rest
	if delta < 0 || b.Last < base || b.Count < 0 {
		return b, fmt.Errorf("%w: the batch at offset %d has %d records up to %d offsets behind it", ErrUnreadable, base,
			b.Count, delta)
	}
	return b, nil
}

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
		if err := each(envelope.Record{Offset: b.Base + delta, Timestamp: time.UnixMilli(at).UTC(), Key: key, Value: value,
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
// its name with the one at the same place of known, if the names are the same, as in most batches.
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

const (
	abortedSize = 16 // the size of an aborted transaction in a response: producer and first offset
	// maxAborted bounds the list. Each of them has left a marker in the log, so a real one is far shorter.
	maxAborted = 1 << 20
)

// Aborted holds the aborted transactions of one response, each identified by its producer and its first offset. A
// transaction ends with its marker. Brokers send the list only with read_committed.
type Aborted struct {
	list []transaction // sorted by producer and offset
	// ended holds, by producer, the offset up to which its transactions are over.
	ended map[int64]int64
}

type transaction struct{ producer, first int64 }

func (t transaction) compare(with transaction) int {
	return cmp.Or(cmp.Compare(t.producer, with.producer), cmp.Compare(t.first, with.first))
}

// NewAborted returns the aborted transactions of a response, with memory from the budget, and false if ctx ends first.
func NewAborted(ctx context.Context, r *Response, h *Hold) (*Aborted, bool) {
	n := len(r.Aborted) / abortedSize
	if n > 0 && !h.Take(ctx, n*abortedSize) {
		return nil, false
	}
	a := &Aborted{list: make([]transaction, n), ended: map[int64]int64{}}
	c := cursor{rest: r.Aborted}
	for i := range a.list {
		a.list[i] = transaction{producer: c.int64(), first: c.int64()}
	}
	slices.SortFunc(a.list, transaction.compare)
	return a, true
}

// Covers reports whether a transactional batch belongs to an aborted transaction: one of its producer that began at the
// batch or before, after the last one that is over.
func (a *Aborted) Covers(producer, base int64) bool {
	from := int64(math.MinInt64)
	if ended, some := a.ended[producer]; some {
		from = ended + 1
	}
	i, _ := slices.BinarySearchFunc(a.list, transaction{producer, from}, transaction.compare)
	return i < len(a.list) && a.list[i].producer == producer && a.list[i].first <= base
}

// end removes what the marker at offset aborts. A producer has one transaction at a time, so everything of it that
// began before the marker is over.
func (a *Aborted) end(producer, offset int64) {
	if ended, some := a.ended[producer]; !some || offset > ended {
		a.ended[producer] = offset
	}
}

// ReadControl processes the markers at the ends of transactions. The key of a control record is a version and a type,
// 16 bits each.
func (a *Aborted) ReadControl(b Batch, content []byte) error {
	const abortMarker = 0
	return b.Walk(content, 0, func(r envelope.Record) error {
		c := cursor{rest: r.Key}
		c.int16()
		kind := c.int16()
		if c.short {
			return fmt.Errorf("%w: the control record at offset %d has a key of %d bytes", ErrUnreadable, r.Offset, len(r.Key))
		}
		if kind == abortMarker {
			a.end(b.Producer, r.Offset)
		}
		return nil
	})
}
