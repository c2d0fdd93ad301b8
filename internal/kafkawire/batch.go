// Package kafkawire encodes and decodes the parts of the protocol that kafka-go leaves to its users or reads without
// bounds: fetch requests and their answers, record batches, decompression, and aborted transactions. It checks every
// answer that kafka-go decodes. It also keeps kafka-go from creating topics, refuses assignments beyond bounds, and
// bounds memory (Budget). It knows no configuration and does not decide what happens to a record.
package kafkawire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/segmentio/kafka-go/compress"
)

// ErrUnreadable means that records cannot be read: their checksum, compression or format is wrong, or a batch is larger
// than MaxBatchBytes.
var ErrUnreadable = errors.New("records cannot be read")

// Batch is a record batch as it is stored in the log: records that were written together.
type Batch struct {
	// Base and Last are the first and last offset of the batch. Compaction may have removed any or all of its records.
	Base, Last int64
	// Epoch is the epoch of the leader that wrote the batch, -1 if unknown.
	Epoch int32
	codec compress.Compression
	// appended means that the records' timestamp is the time at which the broker wrote them.
	appended               bool
	Transactional, Control bool
	Producer               int64
	// firstTime is the base of the records' timestamps. maxTime is the largest timestamp, or the time of writing. Both
	// are in milliseconds.
	firstTime, maxTime int64
	Count              int
	// content holds the records, compressed by codec.
	content []byte
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
	// magicAt is where all formats have their number.
	magicAt = 16
	// oldSumAt is where formats 0 and 1 have their checksum, which covers everything from magicAt on.
	oldSumAt = 12
	// batchHeader is the size of a batch without records, after its prefix.
	batchHeader = 49
	// leastRecord is the length of the shortest record.
	leastRecord = 7
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
