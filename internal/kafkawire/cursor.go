package kafkawire

import (
	"encoding/binary"
	"math"
)

// cursor reads the fields of Kafka's protocol from untrusted bytes. A missing field reads as zero and sets short, which
// callers check before they use the values. No length or count is trusted before the bytes that it describes are there.
type cursor struct {
	rest  []byte
	short bool
}

// take returns the next n bytes, nil if there are fewer.
func (c *cursor) take(n int64) []byte {
	if n < 0 || n > int64(len(c.rest)) {
		c.short, c.rest = true, nil
		return nil
	}
	taken := c.rest[:n:n]
	c.rest = c.rest[n:]
	return taken
}

func (c *cursor) int8() int8   { return int8(c.number(1)) }
func (c *cursor) int16() int16 { return int16(c.number(2)) }
func (c *cursor) int32() int32 { return int32(c.number(4)) }
func (c *cursor) int64() int64 { return int64(c.number(8)) }

// number reads size bytes, the most significant first.
func (c *cursor) number(size int64) (n uint64) {
	for _, b := range c.take(size) {
		n = n<<8 | uint64(b)
	}
	return n
}

// varint reads a zigzag number.
func (c *cursor) varint() int64 {
	value, n := binary.Varint(c.rest)
	if n <= 0 {
		c.short, c.rest = true, nil
		return 0
	}
	c.rest = c.rest[n:]
	return value
}

// uvarint reads an unsigned number. Lengths and counts are encoded as one more than they are, and 0 means none.
func (c *cursor) uvarint() uint64 {
	value, n := binary.Uvarint(c.rest)
	if n <= 0 {
		c.short, c.rest = true, nil
		return 0
	}
	c.rest = c.rest[n:]
	return value
}

// compact reads bytes that follow their length as a uvarint.
func (c *cursor) compact() []byte {
	n := c.uvarint()
	if n == 0 || c.short {
		return nil
	}
	return c.take(int64(min(n-1, 1<<31)))
}

// tags skips tagged fields.
func (c *cursor) tags() {
	for n := c.uvarint(); n > 0 && !c.short; n-- {
		if c.uvarint() > math.MaxInt32 { // kafka-go would take it for one of its own tags
			c.short = true
		}
		c.take(int64(min(c.uvarint(), 1<<31)))
	}
}

// varBytes reads bytes that follow their length as a varint. -1 is nil.
func (c *cursor) varBytes() []byte { return c.sized(c.varint()) }

// bytes reads bytes that follow their length of 32 bits. -1 is nil.
func (c *cursor) bytes() []byte { return c.sized(int64(c.int32())) }

// sized reads n bytes. -1 means nil, 0 means empty.
func (c *cursor) sized(n int64) []byte {
	if n == -1 {
		return nil
	}
	return c.take(n)
}

// count reads how many elements follow, each of at least size bytes. -1, which means none, counts as 0.
func (c *cursor) count(size int) int {
	n := c.int32()
	if n < -1 || int64(n)*int64(size) > int64(len(c.rest)) {
		c.short, c.rest = true, nil
		return 0
	}
	return max(int(n), 0)
}
