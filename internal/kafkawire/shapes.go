package kafkawire

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/describegroups"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/segmentio/kafka-go/protocol/heartbeat"
	"github.com/segmentio/kafka-go/protocol/joingroup"
	"github.com/segmentio/kafka-go/protocol/leavegroup"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/segmentio/kafka-go/protocol/offsetfetch"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/protocol/syncgroup"
)

// answerKind is the type that kafka-go decodes an answer to, and how large the answer may be.
type answerKind struct {
	decoded  reflect.Type
	maxBytes int64
}

// answerKinds are the answers to everything that kafka-go requests for a consumer. Any other answer is refused, because
// nothing would have checked it.
var answerKinds = map[protocol.ApiKey]answerKind{
	protocol.ApiVersions:      {reflect.TypeFor[apiversions.Response](), smallAnswer},
	protocol.SaslHandshake:    {reflect.TypeFor[saslhandshake.Response](), smallAnswer},
	protocol.SaslAuthenticate: {reflect.TypeFor[saslauthenticate.Response](), smallAnswer},
	protocol.FindCoordinator:  {reflect.TypeFor[findcoordinator.Response](), smallAnswer},
	protocol.Heartbeat:        {reflect.TypeFor[heartbeat.Response](), smallAnswer},
	protocol.LeaveGroup:       {reflect.TypeFor[leavegroup.Response](), smallAnswer},
	protocol.Metadata:         {reflect.TypeFor[metadata.Response](), largeAnswer},
	protocol.JoinGroup:        {reflect.TypeFor[joingroup.Response](), largeAnswer},
	protocol.SyncGroup:        {reflect.TypeFor[syncgroup.Response](), largeAnswer},
	protocol.DescribeGroups:   {reflect.TypeFor[describegroups.Response](), largeAnswer},
	protocol.OffsetFetch:      {reflect.TypeFor[offsetfetch.Response](), largeAnswer},
	protocol.OffsetCommit:     {reflect.TypeFor[offsetcommit.Response](), largeAnswer},
	// kafka-go asks for the offsets of one partition at a time.
	protocol.ListOffsets: {reflect.TypeFor[listoffsets.Response](), smallAnswer},
	protocol.Produce:     {reflect.TypeFor[produce.Response](), largeAnswer},
}

// check returns why the content after an answer's length is refused, "" if it is not. A token is not checked, because
// only the mechanism knows its format.
func (r request) check(content []byte) string {
	if r.token {
		return ""
	}
	s := r.shape()
	if s == nil {
		return fmt.Sprintf("answers of version %d are not known", r.version)
	}
	w := &walk{cursor: cursor{rest: content}}
	if id := w.int32(); !w.short && id != r.id {
		return fmt.Sprintf("it is to request %d, not to %d", id, r.id)
	}
	s(w)
	if w.short && w.reason == "" {
		w.refuse("its lengths and counts do not fit its %d bytes", len(content))
	}
	return w.reason
}

// walk reads over bytes as kafka-go decodes them, and takes no memory.
type walk struct {
	cursor
	listed int
	reason string // why the bytes are refused
}

func (w *walk) refuse(format string, args ...any) {
	if w.reason == "" {
		w.reason = fmt.Sprintf(format, args...)
	}
	w.short, w.rest = true, nil
}

func (w *walk) text() { w.take(max(int64(w.int16()), 0)) }

// list walks over n elements, each of which counts as listed.
func (w *walk) list(n, listed int, each shape) {
	if w.listed += n * listed; w.listed > maxListed {
		w.refuse("it lists more than %d numbers or %d other elements", maxListed, maxListed/otherListed)
	}
	for ; n > 0 && !w.short; n-- {
		each(w)
	}
}

// shape walks over a value.
type shape func(*walk)

var shapes sync.Map // of request with key and version alone, to shape

// shape returns the shape of the request's answer, nil if it is unknown.
func (r request) shape() shape {
	id := request{key: r.key, version: r.version}
	if s, ok := shapes.Load(id); ok {
		return s.(shape)
	}
	kind, ok := answerKinds[r.key]
	if !ok || r.version < r.key.MinVersion() || r.version > r.key.MaxVersion() {
		return nil
	}
	flexible := isFlexible(kind.decoded, r.version)
	content, _ := shapeOf(kind.decoded, r.version, flexible)
	s := shape(func(w *walk) {
		if flexible {
			w.tags()
		}
		content(w)
	})
	shapes.Store(id, s)
	return s
}

// isFlexible reports whether a version has compact lengths and tagged fields. A field without a name has the tag that
// tells.
func isFlexible(t reflect.Type, version int16) bool {
	f, ok := t.FieldByName("_")
	return ok && inVersion(f.Tag, version)
}

// inVersion reports whether a version has the field of this tag, such as `kafka:"min=v0,max=v5|min=v6,max=v7,compact"`.
func inVersion(tag reflect.StructTag, version int16) bool {
	for one := range strings.SplitSeq(tag.Get("kafka"), "|") {
		var lowest, highest int16
		if n, _ := fmt.Sscanf(one, "min=v%d,max=v%d", &lowest, &highest); n == 2 && lowest <= version && version <= highest {
			return true
		}
	}
	return false
}

// shapeOf returns the shape of one of kafka-go's types, by the tags that its decoder uses, and the smallest size of a
// value in bytes.
func shapeOf(t reflect.Type, version int16, flexible bool) (s shape, least int) {
	switch kind := t.Kind(); {
	case isNumber(t):
		size := int64(t.Size())
		return func(w *walk) { w.take(size) }, int(size)
	case kind == reflect.String && flexible, isBytes(t) && flexible:
		return func(w *walk) { w.compact() }, 1
	case kind == reflect.String:
		return (*walk).text, 2
	case isBytes(t):
		return func(w *walk) { w.bytes() }, 4
	case kind == reflect.Slice:
		return listOf(t.Elem(), version, flexible)
	case kind == reflect.Struct:
		return structOf(t, version, flexible)
	default:
		panic(fmt.Sprintf("kafka-go decodes a %s, which is not known here", t))
	}
}

func isNumber(t reflect.Type) bool { return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Int64 }

func isBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}

func listOf(element reflect.Type, version int16, flexible bool) (s shape, least int) {
	each, size := shapeOf(element, version, flexible)
	listed := otherListed
	if isNumber(element) {
		listed = 1
	}
	// A group's connection allocates a slice of this length and panics if it is null. kafka-go's other decoders treat a
	// null list as an empty one.
	nullable := element != reflect.TypeFor[apiversions.ApiKeyResponse]()
	s = func(w *walk) {
		n := 0
		if !flexible {
			if ahead := w.cursor; !nullable && ahead.int32() == -1 {
				w.refuse("its list is null")
			}
			n = w.count(size)
		} else if count := w.uvarint(); count > 0 && count-1 <= uint64(len(w.rest)/size) {
			n = int(count - 1)
		} else if count > 0 {
			w.refuse("it claims to list %d elements in %d bytes", count-1, len(w.rest))
		}
		w.list(n, listed, each)
	}
	if flexible {
		return s, 1
	}
	return s, 4
}

func structOf(t reflect.Type, version int16, flexible bool) (s shape, least int) {
	var fields []shape
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name == "_" || !inVersion(f.Tag, version) {
			continue
		}
		if strings.Contains(f.Tag.Get("kafka"), "tag=") {
			panic(fmt.Sprintf("kafka-go decodes the tagged field %s of %s, which is not known here", f.Name, t))
		}
		field, size := shapeOf(f.Type, version, flexible)
		if inner := memberShape(t, f.Name); inner != nil {
			field = within(inner, flexible)
		}
		fields, least = append(fields, field), least+size
	}
	if flexible {
		fields, least = append(fields, func(w *walk) { w.tags() }), least+1
	}
	return func(w *walk) {
		for _, field := range fields {
			field(w)
		}
	}, least
}

// within walks over what members of a group send each other. Brokers pass it on as bytes, and kafka-go decodes it.
func within(inner shape, flexible bool) shape {
	return func(w *walk) {
		var content []byte
		if flexible {
			content = w.compact()
		} else {
			content = w.bytes()
		}
		if len(content) == 0 {
			return
		}
		behind := w.rest
		w.rest = content
		inner(w)
		if w.short {
			w.refuse("what a member of the group sent in it does not fit its %d bytes", len(content))
			return
		}
		w.rest = behind
	}
}

// memberShape returns the shape of a field that members of a group write, nil for other fields.
func memberShape(t reflect.Type, field string) shape {
	switch t.String() + "." + field {
	case "joingroup.ResponseMember.Metadata", "describegroups.ResponseGroupMember.MemberMetadata":
		return (*walk).subscription
	case "syncgroup.Response.Assignments":
		return (*walk).assignment
	case "describegroups.ResponseGroupMember.MemberAssignment":
		return (*walk).assigned
	default:
		return nil
	}
}

// subscription is what a member sends to the group's leader. The fields after the partitions it had belong to later
// versions and are not read.
func (w *walk) subscription() {
	w.int16() // version
	w.list(w.count(2), otherListed, (*walk).text)
	w.bytes() // the user data of the member
	if len(w.rest) > 0 {
		w.partitions()
	}
}

// assigned is what the group's leader sends to a member.
func (w *walk) assigned() {
	w.int16() // version
	w.partitions()
	w.bytes() // the user data of the leader
}

func (w *walk) partitions() {
	w.list(w.count(2+4), otherListed, func(w *walk) {
		w.text()
		w.list(w.count(4), 1, func(w *walk) { w.int32() })
	})
}

// assignment is what the group's leader sends to this member. It is refused if it has more partitions than a member can
// read, or one partition twice.
func (w *walk) assignment() {
	type place struct {
		topic string
		id    int32
	}
	c := w.cursor
	if w.assigned(); w.short {
		return
	}
	total, places := 0, map[place]bool{}
	c.int16() // version
	for range c.count(2 + 4) {
		topic := string(c.take(max(int64(c.int16()), 0)))
		n := c.count(4)
		if total += n; total > maxAssigned {
			c.take(4 * int64(n))
			continue
		}
		for range n {
			at := place{topic, c.int32()}
			if places[at] {
				w.refuse("the group's leader has assigned partition %d of topic %q twice", at.id, topic)
				return
			}
			places[at] = true
		}
	}
	if total > maxAssigned {
		w.refuse("the group's leader has assigned %d partitions, of %d at most", total, maxAssigned)
	}
}
