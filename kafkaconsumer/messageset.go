package kafkaconsumer

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/segmentio/kafka-go/compress"

	"github.com/gorm-inbox/inbox/envelope"
)

// oldBatch reads a message of the formats 0 and 1, which logs may hold that
// were written by brokers before 0.11. A compressed one holds others, and its
// offset is that of the last of them.
func oldBatch(offset int64, whole []byte) (b batch, err error) {
	m, err := oldMessage(offset, whole)
	if err != nil {
		return b, err
	}
	b = batch{base: offset, last: offset, epoch: -1, producer: -1, magic: m.magic, appended: m.appended, maxTime: m.time, codec: m.codec, content: whole}
	if b.codec != compress.None {
		b.content = m.value
	}
	return b, nil
}

// message is one message of the old formats.
type message struct {
	offset, time int64
	magic        int8
	codec        compress.Compression
	appended     bool
	key, value   []byte
}

// oldMessage reads a message that is all there.
func oldMessage(offset int64, whole []byte) (m message, err error) {
	c := cursor{rest: whole[batchPrefix:]}
	if sum, found := uint32(c.int32()), crc32.ChecksumIEEE(c.rest); sum != found {
		return m, fmt.Errorf("%w: the checksum of the message at offset %d is %08x, its content's %08x", ErrUndecodable, offset, sum, found)
	}
	m.offset, m.magic = offset, c.int8()
	attributes := c.int8()
	m.codec, m.time = compress.Compression(attributes&codecMask), -1 // format 0 has no time
	if m.magic == 1 {
		m.appended, m.time = attributes&appendTimeFlag != 0, c.int64()
	}
	m.key, m.value = c.bytes(), c.bytes()
	if c.short || len(c.rest) > 0 || m.magic != 0 && m.magic != 1 {
		return m, fmt.Errorf("%w: the message at offset %d does not fill its %d bytes", ErrUndecodable, offset, len(whole))
	}
	return m, nil
}

// walkMessages is walkRecords for the old formats.
func (b batch) walkMessages(content []byte, each func(envelope.Record) error) error {
	// Within a compressed set of format 1 offsets count from its beginning, of
	// which only the distance to the last one tells where it is.
	shift := int64(0)
	if b.codec != compress.None && b.magic == 1 {
		relative := int64(-1)
		for rest := content; len(rest) > 0; {
			m, after, err := b.nextMessage(rest)
			if err != nil {
				return err
			}
			relative, rest = m.offset, after
		}
		shift = b.last - relative
	}
	previous := int64(-1)
	for rest := content; len(rest) > 0; {
		m, after, err := b.nextMessage(rest)
		if err != nil {
			return err
		}
		rest = after
		if m.offset += shift; m.offset <= previous || m.offset > b.last {
			return fmt.Errorf("%w: the messages up to offset %d have offset %d behind %d", ErrUndecodable, b.last, m.offset, previous)
		}
		previous = m.offset
		if each == nil {
			continue
		}
		if b.appended {
			m.time = b.maxTime
		}
		if err := each(envelope.Record{Offset: m.offset, Timestamp: timestamp(m.time), Key: m.key, Value: m.value}); err != nil {
			return err
		}
	}
	return nil
}

// nextMessage takes the first message off a set.
func (b batch) nextMessage(from []byte) (m message, rest []byte, err error) {
	if len(from) < batchPrefix+oldHeader {
		return m, nil, fmt.Errorf("%w: %d bytes of a message up to offset %d are no message", ErrUndecodable, len(from), b.last)
	}
	offset, size := int64(binary.BigEndian.Uint64(from)), int64(int32(binary.BigEndian.Uint32(from[8:])))
	if size < oldHeader || size > int64(len(from)-batchPrefix) || offset < 0 {
		return m, nil, fmt.Errorf("%w: a message at offset %d claims to have %d bytes of %d", ErrUndecodable, offset, size, len(from))
	}
	m, err = oldMessage(offset, from[:batchPrefix+size])
	if err == nil && m.codec != compress.None && b.codec != compress.None {
		err = fmt.Errorf("%w: a compressed message at offset %d is inside another", ErrUndecodable, offset)
	}
	return m, from[batchPrefix+size:], err
}
