package kafkawire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/segmentio/kafka-go/compress"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

var codecs = []compress.Compression{compress.Gzip, compress.Snappy, compress.Lz4, compress.Zstd}

// framed compresses each part into a frame of its own.
func framed(t testing.TB, codec compress.Compression, parts ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var header []byte
	if codec == compress.Snappy {
		header = append(append([]byte{}, xerialMagic...), make([]byte, 8)...)
		out.Write(header)
	}
	encoder, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	for _, part := range parts {
		switch codec {
		case compress.Gzip:
			w := gzip.NewWriter(&out)
			_, err = w.Write(part)
			require.NoError(t, errors.Join(err, w.Close()))
		case compress.Lz4:
			w := lz4.NewWriter(&out)
			_, err = w.Write(part)
			require.NoError(t, errors.Join(err, w.Close()))
		case compress.Zstd:
			out.Write(encoder.EncodeAll(part, nil))
		case compress.Snappy:
			block := snappy.Encode(nil, part)
			require.NoError(t, binary.Write(&out, binary.BigEndian, uint32(len(block))))
			out.Write(block)
		}
	}
	return out.Bytes()
}

func inflate(ctx context.Context, limit int, codec compress.Compression, content []byte) ([]byte, error) {
	h := NewBudget(1 << 30).NewHold()
	out, held, err := NewInflater(limit).Inflate(ctx, Batch{codec: codec, content: content}, h)
	if err != nil && held != 0 {
		return nil, fmt.Errorf("%d bytes are held after %w", held, err)
	}
	if 2*held < cap(out) { // zstd's decoder rounds its memory up
		return nil, fmt.Errorf("%d bytes are held for %d", held, cap(out))
	}
	return out, err
}

func TestFramesAreDecompressedOneAfterTheOther(t *testing.T) {
	var parts [][]byte
	for i := range 300 {
		parts = append(parts, bytes.Repeat(fmt.Appendf(nil, "part %d ", i), i*i/10))
	}
	want := bytes.Join(parts, nil)
	for _, codec := range codecs {
		content := framed(t, codec, parts...)
		for limit, fits := range map[int]bool{len(want): true, 64 << 20: true, len(want) - 1: false, 1000: false} {
			got, err := inflate(t.Context(), limit, codec, content)
			if !fits {
				require.ErrorIs(t, err, ErrUnreadable, "%s, %d", codec, limit)
				require.ErrorContains(t, err, "larger than MaxBatchBytes", "%s, %d", codec, limit)
				continue
			}
			require.NoError(t, err, codec)
			require.True(t, bytes.Equal(want, got), codec)
		}
	}
}

// Contract 7.2. Each frame of a few bytes costs the work of a beginning: a megabyte of them took a core for twenty
// minutes.
func TestManySmallFramesAreRefusedImmediately(t *testing.T) {
	for _, codec := range codecs {
		for name, part := range map[string][]byte{"empty": nil, "small": []byte("x"), "large": make([]byte, 64<<10)} {
			one := framed(t, codec, part)
			if codec == compress.Snappy {
				one = one[16:]
			}
			content := framed(t, codec)
			content = append(content, bytes.Repeat(one, max(1, (1<<20)/len(one)))...)
			began := time.Now()
			_, err := inflate(t.Context(), 128<<20, codec, content)
			t.Logf("%s: %d bytes of frames that are %s took %s: %v", codec, len(content), name, time.Since(began), err)
			require.Less(t, time.Since(began), testenv.Patience, "it took twenty minutes")
			if codec == compress.Snappy && err == nil {
				continue // its blocks cost no more than their bytes
			}
			require.ErrorIs(t, err, ErrUnreadable, codec)
		}
	}
}

// Contract 7.1. A stop does not wait for the end of a batch.
func TestDecompressingEndsWithItsContext(t *testing.T) {
	for _, codec := range codecs {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := inflate(ctx, 128<<20, codec, framed(t, codec, make([]byte, 1<<20), make([]byte, 1<<20)))
		require.ErrorIs(t, err, context.Canceled, codec)
		require.NotErrorIs(t, err, ErrUnreadable, codec)
	}
}

func FuzzInflate(f *testing.F) {
	for _, codec := range codecs {
		f.Add(uint8(codec), framed(f, codec, []byte("one"), nil, bytes.Repeat([]byte("two"), 1000)))
		f.Add(uint8(codec), []byte{})
	}
	f.Fuzz(func(t *testing.T, codec uint8, content []byte) {
		const limit = 1 << 20
		out, err := inflate(t.Context(), limit, compress.Compression(codec%5), content)
		if err != nil {
			require.ErrorIs(t, err, ErrUnreadable)
			return
		}
		require.LessOrEqual(t, len(out), max(limit, len(content)))
	})
}

// What is compressed comes out again, whatever the frames are.
func FuzzInflateFrames(f *testing.F) {
	f.Add([]byte("some text"), uint(3))
	f.Fuzz(func(t *testing.T, content []byte, size uint) {
		var parts [][]byte
		for rest := content; len(rest) > 0; {
			n := min(int(size%4096)+1+len(content)/maxFrames, len(rest))
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		for _, codec := range codecs {
			out, err := inflate(t.Context(), 1<<20, codec, framed(t, codec, parts...))
			require.NoError(t, err, codec)
			require.Equal(t, string(content), string(out), codec)
		}
	})
}
