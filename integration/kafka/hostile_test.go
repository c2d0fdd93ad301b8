package kafka

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// hostileLimit is the memory of a consumer with default settings, in MiB: BufferBytes, a
// decompressed batch of MaxBatchBytes, and what storing it takes. Before records had limits, these
// tests needed unlimited memory.
const hostileLimit = 1024

// hostileRecord is a compressed record of a few kilobytes that would grow to gigabytes when it is
// decoded.
type hostileRecord struct {
	contentType string
	value       []byte
	headers     int    // how many empty headers it has
	reason      string // why it is bad; empty for a good record of the largest size
	halts       bool   // it is too large to be kept whole
	database    func(testing.TB) string
}

// batch returns the record in a compressed batch of its own at offset 0.
func (h hostileRecord) batch(t *testing.T) []byte {
	t.Helper()
	record := []byte{0, 0, 0, 1} // no attributes, both deltas 0, no key
	record = append(binary.AppendVarint(record, int64(len(h.value))), h.value...)
	record = binary.AppendVarint(record, int64(h.headers+1))
	record = appendHeader(record, "content-type", h.contentType)
	record = append(record, bytes.Repeat([]byte{0, 1}, h.headers)...) // headers without name and value
	return rawBatch(0, zstdCodec, 1, compressed(t, append(binary.AppendVarint(nil, int64(len(record))), record...)))
}

func appendHeader(record []byte, name, value string) []byte {
	record = append(binary.AppendVarint(record, int64(len(name))), name...)
	return append(binary.AppendVarint(record, int64(len(value))), value...)
}

// typedRecord returns a record of this type at an offset from the beginning of its batch.
func typedRecord(delta int, typ string, value []byte) []byte {
	record := append(binary.AppendVarint([]byte{0, 0}, int64(delta)), 1) // no attributes, no key
	record = append(binary.AppendVarint(record, int64(len(value))), value...)
	record = appendHeader(binary.AppendVarint(record, 1), "MessageType", typ)
	return append(binary.AppendVarint(nil, int64(len(record))), record...)
}

func compressed(t *testing.T, records []byte) []byte {
	t.Helper()
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	require.NoError(t, err)
	return encoder.EncodeAll(records, nil)
}

// The codecs of a batch, as its attributes name them.
const (
	gzipCodec = iota + 1
	snappyCodec
	lz4Codec
	zstdCodec
)

// rawBatch returns a batch of n records from an offset on, whatever its content is.
func rawBatch(base int64, codec uint16, n int, content []byte) []byte {
	checked := binary.BigEndian.AppendUint16(nil, codec)
	checked = binary.BigEndian.AppendUint32(checked, uint32(n-1))
	checked = append(checked, make([]byte, 8+8)...)                 // times 0
	checked = append(checked, bytes.Repeat([]byte{0xff}, 8+2+4)...) // of no producer
	checked = append(binary.BigEndian.AppendUint32(checked, uint32(n)), content...)
	out := binary.BigEndian.AppendUint64(make([]byte, 0, 61+len(content)), uint64(base))
	out = binary.BigEndian.AppendUint32(out, uint32(len(checked)+9))
	out = append(out, 0, 0, 0, 0, 2)
	out = binary.BigEndian.AppendUint32(out, crc32.Checksum(checked, crc32.MakeTable(crc32.Castagnoli)))
	return append(out, checked...)
}

// structured returns an event in JSON with n attributes.
func structured(n int) []byte {
	var out bytes.Buffer
	out.WriteString(`{"specversion":"1.0","id":"1","source":"s","type":"event"`)
	for i := range n {
		fmt.Fprintf(&out, `,"a%d":0`, i)
	}
	out.WriteByte('}')
	return out.Bytes()
}

// hostileProgram builds the program that consumes hostile records.
func hostileProgram(t *testing.T) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		testenv.LeaveOutFor(t, "a limit on a process's memory (no ulimit)")
	}
	program := filepath.Join(t.TempDir(), "hostile")
	build := exec.Command("go", "build", "-o", program, "./hostile")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // threads of cgo programs have stacks of 8 MiB
	output, err := build.CombinedOutput()
	require.NoError(t, err, string(output))
	return program
}

// hostile returns a command that runs the program with limited memory.
func hostile(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	script := fmt.Sprintf(`ulimit -d %d && exec "$@"`, hostileLimit<<10)
	command := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", script, "sh", program}, args...)...)
	command.Env = append(os.Environ(), fmt.Sprintf("GOMEMLIMIT=%dMiB", hostileLimit*3/4))
	return command
}

// TestHostileRecordsAreRejectedWithinAMemoryLimit proves contract 4.5, 7.2 and 7.4: a client that
// may write to a topic cannot exhaust the memory of its consumers. Each hostile record is kept as
// rejected, the largest after an operator has skipped them, and later records are handled.
func TestHostileRecordsAreRejectedWithinAMemoryLimit(t *testing.T) {
	program := hostileProgram(t)
	var events bytes.Buffer
	for i := range 1_000_000 {
		fmt.Fprintf(&events, `,{"specversion":"1.0","id":"%d","source":"s","type":"event"}`, i)
	}
	events.WriteByte(']')
	events.Bytes()[0] = '['
	var largest bytes.Buffer
	for i := range 10_000 {
		fmt.Fprintf(&largest, `,{"specversion":"1.0","id":"%d","source":"s","type":"event","data":"%s"}`, i,
			bytes.Repeat([]byte("x"), 300))
	}
	largest.WriteByte(']')
	largest.Bytes()[0] = '['
	var parameters bytes.Buffer
	parameters.WriteString("application/cloudevents+json")
	for i := range 1_000_000 {
		fmt.Fprintf(&parameters, ";a%d=0", i)
	}
	for name, h := range map[string]hostileRecord{
		"20 million headers": {contentType: "text/plain", headers: 20_000_000, reason: "MaxHeaders", halts: true},
		"a million events": {contentType: "application/cloudevents-batch+json", value: events.Bytes(),
			reason: "MaxRecordBytes", halts: true},
		"a million attributes": {contentType: "application/cloudevents+json", value: structured(1_000_000),
			reason: "MaxAttributes"},
		"a million media parameters":    {contentType: parameters.String(), value: structured(0), reason: "content type"},
		"as many events as are allowed": {contentType: "application/cloudevents-batch+json", value: largest.Bytes()},
		"20 million headers, PostgreSQL": {contentType: "text/plain", headers: 20_000_000, reason: "MaxHeaders",
			halts: true, database: testenv.PostgresDSN},
		"a hundred megabytes, PostgreSQL": {contentType: "text/plain", value: make([]byte, 100<<20), reason: "MaxRecordBytes",
			halts: true, database: testenv.PostgresDSN},
		"a hundred megabytes of value": {contentType: "text/plain", value: make([]byte, 100<<20),
			reason: "MaxRecordBytes", halts: true},
	} {
		t.Run(name, func(t *testing.T) {
			if h.database == nil {
				h.database = testenv.SQLiteDSN
			}
			r := newRig(t, 1)
			wire := h.batch(t)
			r.serve([]craftedBatch{{base: 0, last: 0, raw: wire}, {base: 1, last: 1, offsets: []int64{1}}})
			args := []string{"-broker", r.kafka.Brokers()[0], "-topic", topic, "-db", h.database(t), "-last", "1"}
			if h.halts {
				args = append(args, "-says", "too large to be kept", "-skip")
			}
			command := hostile(t, program, args...)
			output, err := command.CombinedOutput()
			t.Logf("%d bytes on the wire: %s", len(wire), output[:min(len(output), 600)]) // the first lines of a panic
			require.NoError(t, err)
			if h.reason == "" {
				require.Contains(t, string(output), "messages=10001 rejected=0 ")
				return
			}
			require.Contains(t, string(output), "messages=1 rejected=1 ")
			require.Contains(t, string(output), h.reason)
		})
	}
}
