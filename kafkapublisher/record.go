package kafkapublisher

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/outgoing"
)

// Names of headers. An Inbox channel finds the ID and the type of a plain record in the first two by default.
const (
	idHeader          = "MessageId"
	typeHeader        = "MessageType"
	traceparentHeader = "traceparent"
)

// record is a message as it is published. kafka-go's records can be read once only, so each request makes its own.
type record struct {
	index      int // of the message in the call
	key, value []byte
	headers    []kafka.Header
	size       int // at most, in a request
}

// Upper bounds of what Kafka's record format adds: to a batch, to a record and to a header.
const (
	batchBytes  = 61
	recordBytes = 27
	headerBytes = 10
)

// encode returns the record of a message. Its value is never null: that would delete the key from a compacted topic.
func (c Config) encode(index int, m outgoing.Message) record {
	r := record{index: index, key: m.Key, value: m.Content, size: recordBytes + len(m.Key) + len(m.Content)}
	if r.value == nil {
		r.value = []byte{}
	}
	for _, h := range c.headers(m) {
		r.headers = append(r.headers, kafka.Header(h))
		r.size += headerBytes + len(h.Key) + len(h.Value)
	}
	return r
}

// headers returns the message's own headers and, after them, those of the format. The latter replace own headers of the
// same names, so that no receiver sees two IDs.
func (c Config) headers(m outgoing.Message) []handler.Header {
	var attributes map[string]string
	var added []handler.Header
	add := func(name, value string) { added = append(added, handler.Header{Key: name, Value: []byte(value)}) }
	if c.Format == Headers {
		add(idHeader, m.ID)
		add(typeHeader, m.Type)
	} else {
		attributes = c.attributes(m)
	}
	if m.Traceparent != "" {
		add(traceparentHeader, m.Traceparent)
	}
	contentType := cmp.Or(m.ContentType, m.Attributes["datacontenttype"])
	own := slices.DeleteFunc(slices.Clone(m.Headers), func(h handler.Header) bool {
		if contentType == "" && strings.EqualFold(h.Key, kafkaclient.ContentType) {
			contentType = string(h.Value)
		}
		// In an event these are attributes by now. Among other headers, receivers would look for the rest of an event.
		return strings.HasPrefix(h.Key, kafkaclient.AttributePrefix) ||
			slices.ContainsFunc(added, func(a handler.Header) bool { return strings.EqualFold(a.Key, h.Key) })
	})
	return append(kafkaclient.ContentHeaders(own, attributes, contentType), added...)
}

// attributes returns the attributes of the message as a CloudEvent. Own headers that are named as attributes count
// where the message has no such attribute.
func (c Config) attributes(m outgoing.Message) map[string]string {
	all := map[string]string{}
	for _, h := range slices.Backward(m.Headers) { // of several headers of one name the first counts
		if name, found := strings.CutPrefix(h.Key, kafkaclient.AttributePrefix); found && h.Value != nil {
			all[name] = string(h.Value)
		}
	}
	maps.Copy(all, m.Attributes)
	all["specversion"], all["id"], all["type"] = "1.0", m.ID, m.Type
	all["source"] = cmp.Or(m.Source, c.Source, "/"+url.PathEscape(m.Channel))
	if at := m.OccurredAt; !at.IsZero() {
		all["time"] = at.UTC().Format(time.RFC3339Nano)
	} else if all["time"] == "" {
		all["time"] = m.StoredAt.UTC().Format(time.RFC3339Nano)
	}
	return all
}
