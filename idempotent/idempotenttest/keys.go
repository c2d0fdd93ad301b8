package idempotenttest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent"
)

// keys checks that keys are distinguished character by character, with any content.
var keys = []promise{
	{"keys of 200 characters of several bytes work and differ by their last", func(t *testing.T, f Fixture) {
		for _, character := range []string{"x", "é", "語", "🙂"} {
			long := strings.Repeat(character, 199)
			separate(t, f, idempotent.Key{MessageID: long + "a", HandlerKey: long + "a"},
				idempotent.Key{MessageID: long + "b", HandlerKey: long + "a"},
				idempotent.Key{MessageID: long + "a", HandlerKey: long + "b"})
		}
	}},
	{"keys that are the same when joined are not the same", func(t *testing.T, f Fixture) {
		separate(t, f, idempotent.Key{MessageID: "ab", HandlerKey: "c"}, idempotent.Key{MessageID: "a", HandlerKey: "bc"},
			idempotent.Key{MessageID: "c", HandlerKey: "ab"}, idempotent.Key{MessageID: "bc", HandlerKey: "a"})
		for _, s := range []string{":", "::", "/", "|", "\\", "%", "%3A", "\\:", ",", ";", "-", "_", ".", " ", "\n", "\x1f",
			"{", "}", "\"", "'", "1:"} {
			separate(t, f, idempotent.Key{MessageID: "a" + s + "b", HandlerKey: "c"},
				idempotent.Key{MessageID: "a", HandlerKey: "b" + s + "c"})
			// the same for a store that puts the handler first
			separate(t, f, idempotent.Key{MessageID: "c", HandlerKey: "a" + s + "b"},
				idempotent.Key{MessageID: "b" + s + "c", HandlerKey: "a"})
			separate(t, f, idempotent.Key{MessageID: "y", HandlerKey: "x" + s},
				idempotent.Key{MessageID: s + "y", HandlerKey: "x"})
			separate(t, f, idempotent.Key{MessageID: "x" + s, HandlerKey: "y"},
				idempotent.Key{MessageID: "x", HandlerKey: s + "y"})
		}
	}},
	{"one message ID in two namespaces is two messages", func(t *testing.T, f Fixture) {
		separate(t, f, idempotent.Key{MessageID: "m", HandlerKey: "h"},
			idempotent.Key{MessageID: "m", HandlerKey: "h", Namespace: "partners"},
			idempotent.Key{MessageID: "m", HandlerKey: "h", Namespace: strings.Repeat("語", 200)},
			idempotent.Key{MessageID: "h", HandlerKey: "partners", Namespace: "m"})
		for _, s := range []string{":", "{", "}", "%3A", "%"} {
			separate(t, f, idempotent.Key{MessageID: "m", HandlerKey: "y", Namespace: "x" + s},
				idempotent.Key{MessageID: "m", HandlerKey: s + "y", Namespace: "x"})
		}
	}},
	{"case, white space and the form of a character tell keys apart", func(t *testing.T, f Fixture) {
		variants := []string{"Order", "order", "ORDER", "order ", " order", "order\t", "order\n", "órder", "o\u0301rder",
			"ｏrder", "order\u200b", "straße", "strasse", "NULL", "null", "0", "00", "0.0", "*", "?", "%", "[a]"}
		var ids, handlers []idempotent.Key
		for _, v := range variants {
			ids = append(ids, idempotent.Key{MessageID: v, HandlerKey: "handler"})
			handlers = append(handlers, idempotent.Key{MessageID: "m1", HandlerKey: v})
		}
		separate(t, f, ids...)
		separate(t, f, handlers...)
	}},
	{"a key is text and nothing else", func(t *testing.T, f Fixture) {
		separate(t, f, idempotent.Key{MessageID: "'; DROP TABLE inbox_markers; --", HandlerKey: "$1 ? ?? @p :name"},
			idempotent.Key{MessageID: "{tag}:%s%d", HandlerKey: "\r\nFLUSHALL\r\n"})
	}},
}

// separate checks that handling one of the keys does not mark those after it as processed. Keys of earlier calls may be
// among them.
func separate(t *testing.T, f Fixture, keys ...idempotent.Key) {
	t.Helper()
	for i, key := range keys {
		if processed(t, f, key) {
			require.Failf(t, "a key is taken for another", "%q is processed before it was handled; before it came %s", key,
				describe(keys[:i]))
		}
		r := run(key.MessageID, key.HandlerKey)
		r.Key = key
		handled(t, f, r)
		skipped(t, f, r)
	}
}

func describe(keys []idempotent.Key) string {
	if len(keys) == 0 {
		return "another call of the test"
	}
	return fmt.Sprintf("%q", keys)
}
