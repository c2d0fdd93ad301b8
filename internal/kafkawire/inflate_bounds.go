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

// zstdBound walks the frames and blocks of zstd-compressed bytes and returns the largest size they
// can decompress to. The format limits what a block holds (RFC 8878, 3.1.1.2). It fails if a frame
// claims more than its blocks can hold, or ends before they do.
func zstdBound(content []byte) (total int64, err error) {
	const largestBlock, blockHeader, checksum = 128 << 10, 3, 4
	for len(content) > 0 {
		var frame zstd.Header
		if err := frame.Decode(content); err != nil {
			return 0, fmt.Errorf("zstd frame header: %w", err)
		}
		c := cursor{rest: content}
		if frame.Skippable {
			c.take(8 + int64(frame.SkippableSize))
			if c.short {
				return 0, errors.New("a skippable zstd frame is cut off")
			}
			content = c.rest
			continue
		}
		c.take(int64(frame.HeaderSize))
		holds := int64(0)
		for last := false; !last; {
			header := c.take(blockHeader)
			if header == nil {
				return 0, errors.New("a zstd frame ends within its blocks")
			}
			bits := int64(header[0]) | int64(header[1])<<8 | int64(header[2])<<16
			last = bits&1 != 0
			switch size := bits >> 3; bits >> 1 & 3 {
			case 0: // raw
				c.take(size)
				holds += size
			case 1: // one byte, repeated
				c.take(1)
				holds += min(size, largestBlock)
			default: // compressed
				c.take(size)
				holds += largestBlock
			}
			if c.short {
				return 0, errors.New("a zstd block is cut off")
			}
		}
		if frame.HasCheckSum {
			c.take(checksum)
		}
		if frame.HasFCS && frame.FrameContentSize > uint64(holds) {
			return 0, errClaim
		}
		total, content = total+holds, c.rest
	}
	return total, nil
}

// xerialMagic starts what Java's snappy library writes: a header of 16 bytes, then blocks, each
// after its length.
var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

// snappyBlocks returns the blocks of snappy-compressed bytes and their total decompressed size. It
// fails if a block claims more than its bytes can hold.
func snappyBlocks(content []byte) (blocks [][]byte, total int64, err error) {
	const header = 16
	if !bytes.HasPrefix(content, xerialMagic) {
		blocks = [][]byte{content}
	} else {
		if len(content) < header {
			return nil, 0, errors.New("the snappy header is cut off")
		}
		for rest := content[header:]; len(rest) > 0; {
			if bytes.HasPrefix(rest, xerialMagic) && len(rest) >= header {
				rest = rest[header:] // the header of another stream after the first
				continue
			}
			if len(rest) < 4 || uint64(binary.BigEndian.Uint32(rest)) > uint64(len(rest)-4) {
				return nil, 0, errors.New("a snappy block is cut off")
			}
			end := 4 + int(binary.BigEndian.Uint32(rest))
			blocks, rest = append(blocks, rest[4:end]), rest[end:]
		}
	}
	for _, block := range blocks {
		n, err := snappy.DecodedLen(block)
		if err != nil {
			return nil, 0, fmt.Errorf("snappy: %w", err)
		}
		if n > 64*len(block) { // three bytes make 64 at most
			return nil, 0, errClaim
		}
		total += int64(n)
	}
	return blocks, total, nil
}

// appendSnappy decompresses a block into the remaining capacity of to, which is known to be enough.
func appendSnappy(to, block []byte) ([]byte, error) {
	decoded, err := snappy.Decode(to[len(to):cap(to)], block)
	if err != nil {
		return nil, fmt.Errorf("snappy: %w", err)
	}
	return to[:len(to)+len(decoded)], nil
}
