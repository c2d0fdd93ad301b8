package properties

import (
	"encoding/base64"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/handler"
)

// scanProperties parses what Serialize writes if no text needs escaping, which holds for nearly all properties. It is
// several times as fast as encoding/json. ok is false for everything else, which is left to encoding/json. A fuzz test
// checks that the two agree on what scanProperties accepts.
func scanProperties(serialized string) (p handler.Properties, seal Seal, ok bool) {
	if !utf8.ValidString(serialized) {
		return handler.Properties{}, Seal{}, false
	}
	s := scanner{rest: serialized}
	s.object(func(key string) {
		switch key {
		case "channel":
			p.Channel = s.text()
		case "headers":
			s.list(func() { p.Headers = append(p.Headers, s.header()) })
		case "attributes":
			p.Attributes = map[string]string{}
			s.object(func(name string) { p.Attributes[name] = s.text() })
		case "kafka":
			p.Kafka = s.coordinates()
		case "accept_traceparent":
			p.Traceparent = s.text()
		case "sealed":
			seal = s.seal()
		default:
			s.failed = true
		}
	})
	return p, seal, !s.failed && s.rest == ""
}

// scanner parses JSON without white space and escapes. Once failed it stays failed, and its results mean nothing.
type scanner struct {
	rest   string
	failed bool
}

// take consumes b if it is the next byte, and reports whether it was.
func (s *scanner) take(b byte) bool {
	if s.failed || s.rest == "" || s.rest[0] != b {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

func (s *scanner) must(b byte) {
	if !s.take(b) {
		s.failed = true
	}
}

func (s *scanner) text() string {
	s.must('"')
	for i := 0; !s.failed && i < len(s.rest); i++ {
		switch c := s.rest[i]; {
		case c == '"':
			text := s.rest[:i]
			s.rest = s.rest[i+1:]
			return text
		case c == '\\' || c < ' ':
			s.failed = true
		}
	}
	s.failed = true
	return ""
}

func (s *scanner) number(bits int) int64 {
	end := strings.IndexAny(s.rest, ",}")
	if end < 1 || s.rest[0] == '+' || strings.HasPrefix(s.rest, "0") && end > 1 || strings.HasPrefix(s.rest, "-0") ||
		strings.Contains(s.rest[:end], "_") {
		s.failed = true
		return 0
	}
	n, err := strconv.ParseInt(s.rest[:end], 10, bits)
	s.failed = s.failed || err != nil
	s.rest = s.rest[end:]
	return n
}

// object calls field for each key, to read its value. It fails if a key occurs twice.
func (s *scanner) object(field func(key string)) {
	s.must('{')
	if s.take('}') {
		return
	}
	seen := make([]string, 0, 8) // on the stack
	for !s.failed {
		key := s.text()
		for _, other := range seen {
			s.failed = s.failed || key == other
		}
		seen = append(seen, key)
		s.must(':')
		field(key)
		if s.take('}') {
			return
		}
		s.must(',')
	}
}

func (s *scanner) list(item func()) {
	s.must('[')
	if s.take(']') {
		return
	}
	for !s.failed {
		item()
		if s.take(']') {
			return
		}
		s.must(',')
	}
}

func (s *scanner) header() (h handler.Header) {
	named := false
	s.object(func(key string) {
		switch key {
		case "k":
			h.Key, named = s.text(), true
		case "v":
			h.Value = []byte(s.text())
		default:
			s.failed = true
		}
	})
	s.failed = s.failed || !named
	return h
}

func (s *scanner) seal() (seal Seal) {
	s.object(func(key string) {
		switch key {
		case "key":
			seal.Key = s.text()
		case "sha256":
			var err error
			seal.SHA256, err = base64.StdEncoding.DecodeString(s.text())
			s.failed = s.failed || err != nil
		default:
			s.failed = true
		}
	})
	return seal
}

func (s *scanner) coordinates() *handler.KafkaCoordinates {
	k := &handler.KafkaCoordinates{Timestamp: time.UnixMilli(0).UTC()}
	s.object(func(key string) {
		switch key {
		case "topic":
			k.Topic = s.text()
		case "partition":
			k.Partition = int(s.number(strconv.IntSize))
		case "offset":
			k.Offset = s.number(64)
		case "timestamp_ms":
			k.Timestamp = time.UnixMilli(s.number(64)).UTC()
		case "key":
			s.object(func(key string) {
				if key != "v" {
					s.failed = true
				}
				k.Key = []byte(s.text())
			})
		case "tombstone":
			s.failed = s.failed || !strings.HasPrefix(s.rest, "true")
			if !s.failed {
				s.rest, k.Tombstone = s.rest[len("true"):], true
			}
		case "index":
			k.Index = int(s.number(strconv.IntSize))
		default:
			s.failed = true
		}
	})
	return k
}

// writeProperties writes what json.Marshal would write, several times as fast, if all text is printable ASCII without
// anything to escape. ok is false for everything else. A fuzz test compares the two.
func writeProperties(p handler.Properties) (serialized string, ok bool) {
	var usual [512]byte // on the stack
	w := writer{text: append(usual[:0], '{')}
	if p.Channel != "" {
		w = quoted(w.field(`"channel":`), p.Channel)
	}
	if len(p.Headers) > 0 {
		w = w.field(`"headers":`).add(`[`)
		for i, h := range p.Headers {
			if i > 0 {
				w = w.add(`,`)
			}
			w = quoted(w.add(`{"k":`), h.Key)
			if h.Value != nil {
				w = quoted(w.add(`,"v":`), h.Value)
			}
			w = w.add(`}`)
		}
		w = w.add(`]`)
	}
	if len(p.Attributes) > 0 {
		w = w.field(`"attributes":`).add(`{`)
		for i, name := range slices.Sorted(maps.Keys(p.Attributes)) {
			if i > 0 {
				w = w.add(`,`)
			}
			w = quoted(quoted(w, name).add(`:`), p.Attributes[name])
		}
		w = w.add(`}`)
	}
	if k := p.Kafka; k != nil {
		w = quoted(w.field(`"kafka":`).add(`{"topic":`), k.Topic)
		w = w.number(`,"partition":`, int64(k.Partition)).number(`,"offset":`, k.Offset)
		w = w.number(`,"timestamp_ms":`, k.Timestamp.UnixMilli())
		if k.Key != nil {
			w = quoted(w.add(`,"key":{"v":`), k.Key).add(`}`)
		}
		if k.Tombstone {
			w = w.add(`,"tombstone":true`)
		}
		if k.Index != 0 {
			w = w.number(`,"index":`, int64(k.Index))
		}
		w = w.add(`}`)
	}
	if p.Traceparent != "" {
		w = quoted(w.field(`"accept_traceparent":`), p.Traceparent)
	}
	w = w.add(`}`)
	return string(w.text), !w.failed
}

// writer is passed by value, so that its text can stay on the stack.
type writer struct {
	text   []byte
	failed bool // some text needs escaping
}

func (w writer) add(text string) writer {
	w.text = append(w.text, text...)
	return w
}

// field begins a field of the outermost object.
func (w writer) field(name string) writer {
	if len(w.text) > 1 {
		w.text = append(w.text, ',')
	}
	return w.add(name)
}

func (w writer) number(name string, n int64) writer {
	w = w.add(name)
	w.text = strconv.AppendInt(w.text, n, 10)
	return w
}

// verbatim holds the characters that JSON needs no escape for and that json.Marshal writes as they are.
var verbatim = func() (is [256]bool) {
	for c := byte(' '); c < 0x7f; c++ {
		is[c] = c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
	}
	return is
}()

func quoted[T string | []byte](w writer, text T) writer {
	for i := range len(text) {
		if !verbatim[text[i]] {
			w.failed = true
			return w
		}
	}
	w.text = append(w.text, '"')
	w.text = append(w.text, text...)
	w.text = append(w.text, '"')
	return w
}
