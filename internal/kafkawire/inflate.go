package kafkawire

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"
)

// Inflater decompresses batches of at most as many bytes as NewInflater got. Compressed bytes may claim or become any
// size. So memory is taken from the budget for bytes that are there or can result, never for a header's claim.
//
// Compressed bytes may also cost any time: each frame of a few bytes takes the work of a beginning. So a batch has at
// most maxFrames, and the context is checked between them and while bytes are read.
//
// gzip and lz4 are read as streams. kafka-go's snappy and zstd take as much memory as a header claims, so we decode
// these two block by block or frame by frame.
type Inflater struct {
	limit int

	once sync.Once
	zstd *zstd.Decoder
	err  error
}

// maxFrames is how many frames, or members of gzip, a batch may have. Producers write one.
const maxFrames = 1000

var errFrames = fmt.Errorf("it has more than %d frames", maxFrames)

// NewInflater returns an Inflater. It is safe for concurrent use.
func NewInflater(maxBatchBytes int) *Inflater { return &Inflater{limit: maxBatchBytes} }

// Inflate returns a batch's records decompressed, and how many bytes of the budget are held for them.
func (i *Inflater) Inflate(ctx context.Context, b Batch, h *Hold) (content []byte, held int, err error) {
	if len(b.content) > i.limit {
		return nil, 0, i.tooLarge(b, "compressed ")
	}
	if b.codec == compress.None {
		return b.content, 0, nil // held as the response
	}
	before := h.bytes()
	to := &inflated{ctx: ctx, limit: i.limit, hold: h}
	switch b.codec {
	case compress.Gzip:
		err = to.gzip(b.content)
	case compress.Snappy:
		err = to.snappy(b.content)
	case compress.Lz4:
		err = to.lz4(b.content)
	case compress.Zstd:
		err = i.unzstd(to, b.content)
	default:
		return nil, 0, fmt.Errorf("%w: the batch at offset %d is compressed by the unknown codec %d", ErrUnreadable, b.Base,
			int(b.codec))
	}
	held = h.bytes() - before
	switch {
	case err == nil:
		return to.content, held, nil
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, errTooLarge):
		err = i.tooLarge(b, "decompressed ")
	case i.err != nil:
		err = fmt.Errorf("make a zstd decoder: %w", i.err)
	default:
		err = fmt.Errorf("%w: decompress the batch at offset %d (%s): %w", ErrUnreadable, b.Base, b.codec, err)
	}
	h.GiveBack(held)
	return nil, 0, err
}

func (i *Inflater) tooLarge(b Batch, what string) error {
	return fmt.Errorf("%w: the %sbatch at offset %d is larger than MaxBatchBytes (%d)", ErrUnreadable, what, b.Base,
		i.limit)
}

var errTooLarge = errors.New("it decompresses to more than is allowed")

// inflated holds the decompressed bytes of a batch so far. It grows with them.
type inflated struct {
	ctx     context.Context
	limit   int
	hold    *Hold
	content []byte
}

// grow makes room for more bytes, but only up to one byte more than the limit allows: that byte reveals a batch that is
// too large. The memory doubles, so that many frames together copy no more than a multiple of the result.
func (o *inflated) grow(more int) error {
	const first = 64 << 10
	have := len(o.content)
	if cap(o.content)-have >= more {
		return o.ctx.Err()
	}
	size := min(max(have+more, 2*cap(o.content), first), o.limit+1)
	if size <= have {
		return errTooLarge
	}
	if size > cap(o.content) {
		if !o.hold.Take(o.ctx, size-cap(o.content)) {
			return o.ctx.Err()
		}
		o.content = append(make([]byte, 0, size), o.content...)
	}
	return o.ctx.Err()
}

// room returns the memory after the content.
func (o *inflated) room() []byte { return o.content[len(o.content):cap(o.content)] }

// read reads a stream to its end.
func (o *inflated) read(from io.Reader) error {
	for {
		if len(o.room()) == 0 {
			if err := o.grow(1); err != nil {
				return err
			}
		}
		n, err := from.Read(o.room())
		o.content = o.content[:len(o.content)+n]
		switch {
		case len(o.content) > o.limit:
			return errTooLarge
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// gzip decompresses the members of gzip, one after the other.
func (o *inflated) gzip(content []byte) error {
	from := bufio.NewReader(&inflating{o.ctx, content})
	member, err := gzip.NewReader(from)
	for n := 1; err == nil; n++ {
		if n > maxFrames {
			return errFrames
		}
		member.Multistream(false)
		if err = o.read(member); err == nil {
			err = member.Reset(from)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil // after the last member
	}
	return err
}

// lz4 decompresses lz4 by kafka-go's codec, which reads one frame after the other.
func (o *inflated) lz4(content []byte) error {
	if err := checkLZ4(content); err != nil {
		return err
	}
	reader := compress.Lz4.Codec().NewReader(&inflating{o.ctx, content})
	err := o.read(reader)
	return errors.Join(err, reader.Close())
}

// inflating is a codec's input. It has a single method, so that codecs cannot use another way to read, and ends with
// the context: a codec may read many bytes before any results.
type inflating struct {
	ctx  context.Context
	rest []byte
}

func (r *inflating) Read(into []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	const limit = 64 << 10
	n := copy(into[:min(len(into), limit)], r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// zstdSlack is how far a frame's bound may exceed the rest of the limit before the decoder is limited. Bounds are
// rounded up to whole blocks, and a limited decoder also refuses small content that was written with a larger window.
const zstdSlack = 4 << 20

// unzstd decompresses zstd, one frame after the other.
func (i *Inflater) unzstd(o *inflated, content []byte) error {
	i.once.Do(func() { i.zstd, i.err = zstd.NewReader(nil) })
	if i.err != nil {
		return i.err
	}
	frames := 0
	for len(content) > 0 {
		frame, err := cutFrame(content)
		if err != nil {
			return err
		}
		content = content[frame.size:]
		if frame.skippable {
			continue
		}
		if frames++; frames > maxFrames {
			return errFrames
		}
		if err := i.unzstdFrame(o, frame); err != nil {
			return err
		}
	}
	return nil
}

// unzstdFrame decompresses one frame. There is memory for all that a frame says it holds: the decoder would copy the
// content of all frames before it to make room. If it does not say that, the decoder's memory doubles, and the doubled
// size is taken from the budget first.
func (i *Inflater) unzstdFrame(o *inflated, f zstdFrame) error {
	left := int64(o.limit - len(o.content))
	if f.exact && f.holds > left {
		return errTooLarge
	}
	first := f.holds
	if !f.exact {
		first = min(f.holds, left, max(64<<10, 4*int64(f.size)))
	}
	if err := o.grow(int(first)); err != nil {
		return err
	}
	decoder := i.zstd
	if f.holds > left+zstdSlack {
		limited, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(left+1)))
		if err != nil {
			return err
		}
		defer limited.Close()
		decoder = limited
	}
	before := cap(o.content)
	reserved := max(int(min(f.holds, left))-len(o.room()), 0)
	if !o.hold.Take(o.ctx, reserved) {
		return o.ctx.Err()
	}
	content, err := decoder.DecodeAll(f.bytes, o.content)
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return errTooLarge
	}
	if err != nil {
		return err
	}
	if len(content) > o.limit {
		return errTooLarge
	}
	o.hold.GiveBack(max(reserved-(cap(content)-before), 0))
	o.content = content
	return nil
}

// snappy decompresses snappy, with or without the framing of Java's library.
func (o *inflated) snappy(content []byte) error {
	total := int64(0)
	if err := eachSnappyBlock(content, func(_ []byte, n int) error {
		total += int64(n)
		return nil
	}); err != nil {
		return err
	}
	if total > int64(o.limit) {
		return errTooLarge
	}
	if err := o.grow(int(total)); err != nil {
		return err
	}
	return eachSnappyBlock(content, func(block []byte, n int) error {
		decoded, err := snappy.Decode(o.room(), block)
		if err != nil {
			return fmt.Errorf("snappy: %w", err)
		}
		o.content = o.content[:len(o.content)+len(decoded)]
		return o.ctx.Err()
	})
}

var errClaim = errors.New("it claims more than its bytes can hold")

// zstdFrame is one frame of zstd-compressed bytes.
type zstdFrame struct {
	bytes []byte
	size  int
	// holds is the largest size that the frame can decompress to. exact means that the frame states this size.
	holds     int64
	exact     bool
	skippable bool // whether the frame holds nothing
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
// producer of Kafka writes: of the format before frames, and with a dictionary. The codec may find their end elsewhere.
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
