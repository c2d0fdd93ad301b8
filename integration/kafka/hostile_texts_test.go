package kafka

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

// TestProducerTextsAreNeitherKeptNorLogged proves contract 3.6: of the types that a producer makes up, and of errors
// that quote a whole record, a few hundred bytes are kept and logged, in every delivery mode. Each case is some
// kilobytes on the wire.
func TestProducerTextsAreNeitherKeptNorLogged(t *testing.T) {
	program := hostileProgram(t)
	const batches, each, long = 2, 500, 150_000
	types := make([]craftedBatch, 0, batches)
	for b := range batches {
		var records []byte
		for i := range each {
			records = append(records, typedRecord(i, fmt.Sprint(b, "-", i, strings.Repeat("x", long)), nil)...)
		}
		base := int64(b * each)
		types = append(types, craftedBatch{base: base, last: base + each - 1,
			raw: rawBatch(base, zstdCodec, each, compressed(t, records))})
	}
	quoted := []craftedBatch{
		{base: 0, last: 0, raw: rawBatch(0, zstdCodec, 1, compressed(t, typedRecord(0, "quoted",
			bytes.Repeat([]byte("\x00a://"), 3<<20))))},
		{base: 1, last: 1, offsets: []int64{1}},
	}
	for name, c := range map[string]struct {
		batches []craftedBatch
		mode    string
		args    []string
	}{
		"a thousand types of 150 kB": {types, "inbox", []string{"-says", "its type has 1500"}},
		"a thousand types of 150 kB, direct": {[]craftedBatch{types[0], {base: each, last: each,
			offsets: []int64{each}}}, "direct", []string{"-last", fmt.Sprint(each)}},
		"an error that quotes a record":         {quoted, "inbox", []string{"-last", "1"}},
		"an error that quotes a record, inline": {quoted, "inline", []string{"-last", "1"}},
		"an error that quotes a record, direct": {quoted, "direct", []string{"-last", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.serve(c.batches)
			wire := 0
			for _, b := range c.batches {
				wire += len(b.raw)
			}
			command := hostile(t, program, append(c.args, "-broker", r.kafka.Brokers()[0], "-topic", topic, "-db",
				testenv.SQLiteDSN(t), "-mode", c.mode)...)
			output, err := command.CombinedOutput()
			t.Logf("%d bytes on the wire: %s", wire, output[:min(len(output), 900)]) // the first lines of a panic
			require.NoError(t, err)
			found := regexp.MustCompile(`logged=(\d+)`).FindStringSubmatch(string(output))
			logged, err := strconv.Atoi(found[1])
			require.NoError(t, err)
			require.Less(t, logged, 64<<10)
		})
	}
}
