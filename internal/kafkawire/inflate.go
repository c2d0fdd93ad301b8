package kafkawire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"
)

// Inflater decompresses batches of at most as many bytes as NewInflater got. Compressed bytes may
// claim or become any size. So memory is taken from the budget for what is there or can result from
// it, never for what a header claims.
//
// gzip and lz4 use kafka-go's codecs. Its snappy and zstd take as much memory as a header claims,
// so we decode these two block by block or within known bounds.
type Inflater struct {
	limit int

	once    sync.Once
	zstd    *zstd.Decoder // for content whose bound does not exceed limit by much
	limited *zstd.Decoder
	err     error
}

// NewInflater returns an Inflater. It is safe for concurrent use.
func NewInflater(maxBatchBytes int) *Inflater { return &Inflater{limit: maxBatchBytes} }

// Inflate returns a batch's records decompressed, and how many bytes of the budget are held for
// them.
func (i *Inflater) Inflate(ctx context.Context, b Batch, h *Hold) (content []byte, held int, err error) {
	if len(b.content) > i.limit {
		return nil, 0, i.tooLarge(b, "compressed ")
	}
	before := h.bytes()
	switch b.codec {
	case compress.None:
		return b.content, 0, nil // held as the response
	case compress.Snappy:
		content, err = i.snappy(ctx, b, h)
	case compress.Zstd:
		content, err = i.unzstd(ctx, b, h)
	default:
		content, err = i.stream(ctx, b, h)
	}
	held = h.bytes() - before
	if err != nil {
		h.GiveBack(held)
		return nil, 0, err
	}
	return content, held, nil
}

func (i *Inflater) tooLarge(b Batch, what string) error {
	return fmt.Errorf("%w: the %sbatch at offset %d is larger than MaxBatchBytes (%d)", ErrUnreadable, what, b.Base,
		i.limit)
}

func corrupt(b Batch, err error) error {
	return fmt.Errorf("%w: decompress the batch at offset %d (%s): %w", ErrUnreadable, b.Base, b.codec, err)
}

// stream decompresses content of unknown size, growing with what comes.
func (i *Inflater) stream(ctx context.Context, b Batch, h *Hold) (content []byte, err error) {
	codec := b.codec.Codec()
	if codec == nil {
		return nil, fmt.Errorf("%w: the batch at offset %d is compressed by the unknown codec %d", ErrUnreadable, b.Base,
			int(b.codec))
	}
	reader := codec.NewReader(&bytesReader{rest: b.content})
	defer func() {
		if closeErr := reader.Close(); err == nil && closeErr != nil && !errors.Is(closeErr, io.EOF) {
			err = corrupt(b, closeErr)
		}
	}()
	const first = 64 << 10
	for {
		if len(content) == cap(content) {
			// One byte more than allowed reveals what is too large.
			grow := min(max(cap(content), min(2*len(b.content), i.limit), first), i.limit+1-len(content))
			if grow <= 0 {
				return nil, i.tooLarge(b, "decompressed ")
			}
			if !h.Take(ctx, grow) {
				return nil, ctx.Err()
			}
			content = append(make([]byte, 0, cap(content)+grow), content...)
		}
		n, err := reader.Read(content[len(content):cap(content)])
		content = content[:len(content)+n]
		if len(content) > i.limit {
			return nil, i.tooLarge(b, "decompressed ")
		}
		if errors.Is(err, io.EOF) {
			return content, nil
		}
		if err != nil {
			return nil, corrupt(b, err)
		}
	}
}

// bytesReader has a single method, so that codecs cannot use another way to read.
type bytesReader struct{ rest []byte }

func (r *bytesReader) Read(into []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(into, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// zstdSlack is how far a bound may exceed the limit before the limited decoder is used. Bounds are
// rounded up to whole blocks, and the limited decoder also refuses small content that was written
// with a window larger than the limit.
const zstdSlack = 4 << 20

// unzstd decompresses zstd. The blocks bound in advance how much can result, and no frame may claim
// more.
func (i *Inflater) unzstd(ctx context.Context, b Batch, h *Hold) ([]byte, error) {
	most, err := zstdBound(b.content)
	if err != nil {
		return nil, corrupt(b, err)
	}
	i.once.Do(i.makeDecoders)
	if i.err != nil {
		return nil, fmt.Errorf("make a zstd decoder: %w", i.err)
	}
	decoder := i.zstd
	if most > int64(i.limit)+zstdSlack {
		decoder, most = i.limited, int64(i.limit)
	}
	if !h.Take(ctx, int(most)) {
		return nil, ctx.Err()
	}
	content, err := decoder.DecodeAll(b.content, make([]byte, 0, min(int(most), max(64<<10, 4*len(b.content)))))
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return nil, i.tooLarge(b, "decompressed ")
	}
	if err != nil {
		return nil, corrupt(b, err)
	}
	if len(content) > i.limit {
		return nil, i.tooLarge(b, "decompressed ")
	}
	h.GiveBack(int(most) - min(cap(content), int(most)))
	return content, nil
}

func (i *Inflater) makeDecoders() {
	i.zstd, i.err = zstd.NewReader(nil)
	if i.err == nil {
		i.limited, i.err = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(uint64(max(i.limit, zstd.MinWindowSize))))
	}
}

// snappy decompresses snappy, with or without the framing of Java's library.
func (i *Inflater) snappy(ctx context.Context, b Batch, h *Hold) ([]byte, error) {
	blocks, total, err := snappyBlocks(b.content)
	if err != nil {
		return nil, corrupt(b, err)
	}
	if total > int64(i.limit) {
		return nil, i.tooLarge(b, "decompressed ")
	}
	if !h.Take(ctx, int(total)) {
		return nil, ctx.Err()
	}
	content := make([]byte, 0, total)
	for _, block := range blocks {
		if content, err = appendSnappy(content, block); err != nil {
			return nil, corrupt(b, err)
		}
	}
	return slices.Clip(content), nil
}
