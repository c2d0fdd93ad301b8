package kafkawire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

var errClaim = errors.New("it claims more than its bytes can hold")

// zstdFrame is one frame of zstd-compressed bytes.
type zstdFrame struct {
	bytes []byte
	size  int
	// holds is the largest size that the frame can decompress to. exact means that the frame states this size.
	holds int64
	exact bool
	// skippable means that the frame holds nothing.
	skippable bool
}

// cutFrame returns the first frame of zstd-compressed bytes. It walks the frame's blocks. The format limits the size of
// each one (RFC 8878, 3.1.1.2). It fails if the frame claims more than its blocks can hold, or ends before they do.
func cutFrame(content []byte) (f zstdFrame, err error) {
	const largestBlock, blockHeader, checksum = 128 << 10, 3, 4
	var header zstd.Header
	if err := header.Decode(content); err != nil {
		return f, fmt.Errorf("zstd frame header: %w", err)
	}
	c := cursor{rest: content}
	if header.Skippable {
		c.take(8 + int64(header.SkippableSize))
		if c.short {
			return f, errors.New("a skippable zstd frame is cut off")
		}
		return zstdFrame{size: len(content) - len(c.rest), skippable: true}, nil
	}
	c.take(int64(header.HeaderSize))
	for last := false; !last; {
		block := c.take(blockHeader)
		if block == nil {
			return f, errors.New("a zstd frame ends within its blocks")
		}
		bits := int64(block[0]) | int64(block[1])<<8 | int64(block[2])<<16
		last = bits&1 != 0
		switch size := bits >> 3; bits >> 1 & 3 {
		case 0: // raw
			c.take(size)
			f.holds += size
		case 1: // one byte, repeated
			c.take(1)
			f.holds += min(size, largestBlock)
		default: // compressed
			c.take(size)
			f.holds += largestBlock
		}
		if c.short {
			return f, errors.New("a zstd block is cut off")
		}
	}
	if header.HasCheckSum {
		c.take(checksum)
	}
	if header.HasFCS && header.FrameContentSize > uint64(f.holds) {
		return f, errClaim
	}
	if header.HasFCS {
		f.holds, f.exact = int64(header.FrameContentSize), true
	}
	f.size = len(content) - len(c.rest)
	f.bytes = content[:f.size]
	return f, nil
}

// checkLZ4 walks the frames of lz4-compressed bytes and refuses more of them than maxFrames, and frames that no
// producer of Kafka writes: of the format before frames, and with a dictionary. Their end may be elsewhere than where
// the codec finds it.
func checkLZ4(content []byte) error {
	const (
		frameMagic, skippableMagic  = 0x184D2204, 0x184D2A50
		withDictionary, withContent = 1, 8 // flags
		contentSum, blockSum        = 4, 16
		raw                         = 1 << 31 // of a block's size
	)
	c := cursor{rest: content}
	number := func() int64 {
		if b := c.take(4); b != nil {
			return int64(binary.LittleEndian.Uint32(b))
		}
		return 0
	}
	for frames := 1; len(c.rest) > 0; frames++ {
		if frames > maxFrames {
			return errFrames
		}
		magic := number()
		if magic&^0xf == skippableMagic {
			c.take(number())
			continue
		}
		flags := c.int8()
		if magic != frameMagic || flags&withDictionary != 0 {
			return errors.New("an lz4 frame has an unknown format")
		}
		c.take(1) // the largest size of a block
		if flags&withContent != 0 {
			c.take(8)
		}
		c.take(1) // the header's checksum
		for size := number(); size != 0; size = number() {
			c.take(size &^ raw)
			if flags&blockSum != 0 {
				c.take(4)
			}
		}
		if flags&contentSum != 0 {
			c.take(4)
		}
	}
	if c.short {
		return errors.New("an lz4 frame is cut off")
	}
	return nil
}

// xerialMagic starts the output of Java's snappy library: a header of 16 bytes, then blocks, each after its length.
var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

// eachSnappyBlock calls each for the blocks of snappy-compressed bytes, with the size that a block decompresses to. It
// fails if a block claims more than its bytes can hold.
func eachSnappyBlock(content []byte, each func(block []byte, size int) error) error {
	one := func(block []byte) error {
		n, err := snappy.DecodedLen(block)
		if err != nil {
			return fmt.Errorf("snappy: %w", err)
		}
		if n > 64*len(block) { // three bytes make 64 at most
			return errClaim
		}
		return each(block, n)
	}
	const header = 16
	if !bytes.HasPrefix(content, xerialMagic) {
		return one(content)
	}
	if len(content) < header {
		return errors.New("the snappy header is cut off")
	}
	for rest := content[header:]; len(rest) > 0; {
		if bytes.HasPrefix(rest, xerialMagic) && len(rest) >= header {
			rest = rest[header:] // the header of another stream after the first
			continue
		}
		if len(rest) < 4 || uint64(binary.BigEndian.Uint32(rest)) > uint64(len(rest)-4) {
			return errors.New("a snappy block is cut off")
		}
		end := 4 + int(binary.BigEndian.Uint32(rest))
		if err := one(rest[4:end]); err != nil {
			return err
		}
		rest = rest[end:]
	}
	return nil
}
