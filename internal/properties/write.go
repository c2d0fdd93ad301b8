package properties

import (
	"maps"
	"slices"
	"strconv"

	"github.com/gorm-inbox/inbox/handler"
)

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
