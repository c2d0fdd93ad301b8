package kafkawire

import (
	"bufio"
	"context"
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
// size. So memory is taken from the budget for bytes that are there or can result from them, never for a header's
// claim.
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
// rounded up to whole blocks, and a limited decoder also refuses small content that was written with a window larger
// than its limit.
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
