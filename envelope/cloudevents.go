package envelope

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/brief"
)

// cloudEvent holds the context attributes and extensions of one event. Their values are kept as they came, so that IDs
// and sources are never altered.
type cloudEvent map[string]string

type eventKind int

const (
	noEvent eventKind = iota
	binaryEvent
	structuredEvent
	batchedEvents
)

const (
	attributePrefix  = "ce_" // of header names, CloudEvents Kafka binding 3.2.3
	specVersion      = "1.0"
	eventMediaType   = "application/cloudevents"
	structuredFormat = eventMediaType + "+json"
	batchFormat      = eventMediaType + "-batch+json"
)

// looksStructured reports whether a record may hold JSON events. It runs for every record, so it makes no strings.
func looksStructured(headers []handler.Header) bool {
	return slices.ContainsFunc(headers, func(h handler.Header) bool {
		return strings.EqualFold(h.Key, contentTypeHeader) && len(h.Value) >= len(eventMediaType) &&
			bytes.EqualFold(h.Value[:len(eventMediaType)], []byte(eventMediaType))
	})
}

func isEventMedia(contentType string) bool {
	return len(contentType) >= len(eventMediaType) && strings.EqualFold(contentType[:len(eventMediaType)], eventMediaType)
}

// cloudEventKind returns how a record carries CloudEvents, if it does.
func cloudEventKind(headers []handler.Header) (eventKind, error) {
	contentType := header(headers, contentTypeHeader)
	if isEventMedia(contentType) {
		if err := checkMediaType(contentType); err != nil {
			return noEvent, err
		}
		media, parameters, err := mime.ParseMediaType(contentType)
		if err != nil {
			return noEvent, malformed("content type %q: %w", brief.Name(contentType), err)
		}
		if charset := parameters["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") &&
			!strings.EqualFold(charset, "us-ascii") {
			return noEvent, malformed("content type %q, supported is charset utf-8", contentType)
		}
		switch media {
		case structuredFormat:
			return structuredEvent, nil
		case batchFormat:
			return batchedEvents, nil
		default:
			return noEvent, malformed("content type %q, supported are %s and %s", contentType, structuredFormat, batchFormat)
		}
	}
	if slices.ContainsFunc(headers, func(h handler.Header) bool { return h.Key == attributePrefix+"specversion" }) {
		return binaryEvent, nil
	}
	return noEvent, nil
}

// binaryMode reads an event whose attributes are headers and whose data is the record's value.
func binaryMode(r Record, within bounds) ([]decoded, error) {
	e := cloudEvent{}
	for _, h := range r.Headers {
		name, ok := strings.CutPrefix(h.Key, attributePrefix)
		if !ok || h.Value == nil {
			continue // null means absent, as in the JSON format
		}
		if _, again := e[name]; again {
			return nil, malformed("header %q comes twice", brief.Name(h.Key))
		}
		if len(e) == within.attributes {
			return nil, tooMany(within.attributes+1, "attributes", "MaxAttributes", within.attributes)
		}
		e[name] = string(h.Value)
	}
	if contentType := header(r.Headers, contentTypeHeader); contentType != "" {
		e["datacontenttype"] = contentType
	}
	return one(e, r.Value)
}

// one validates the event and makes a message of it.
func one(e cloudEvent, content []byte) ([]decoded, error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	return []decoded{{typ: e["type"], source: e["source"], contentType: e["datacontenttype"], content: content, event: e}},
		nil
}

// validate checks everything except the ID, which is checked after routing.
func (e cloudEvent) validate() error {
	for name, value := range e {
		if !event.IsExtensionNameValid(name) {
			return malformed("attribute name %q", brief.Name(name))
		}
		if name == "id" {
			continue
		}
		if err := checkText(value); err != nil {
			return malformed("attribute %s %w", brief.Name(name), err)
		}
	}
	if v := e["specversion"]; v != specVersion {
		return malformed("specversion is %q, supported is %s", brief.Name(v), specVersion)
	}
	context := event.EventContextV1{ID: "-", Type: e["type"]}
	if source := types.ParseURIRef(e["source"]); source != nil {
		context.Source = *source
	}
	if v, ok := e["datacontenttype"]; ok {
		if err := checkMediaType(v); err != nil {
			return err
		}
		context.DataContentType = &v
	}
	if v, ok := e["subject"]; ok {
		context.Subject = &v
	}
	if v, ok := e["dataschema"]; ok {
		if context.DataSchema = types.ParseURI(v); context.DataSchema == nil {
			return malformed("dataschema %q is not an absolute URI", brief.Name(v))
		}
	}
	if v, ok := e["time"]; ok {
		if _, err := types.ParseTime(v); err != nil {
			return malformed("time %q is not an RFC 3339 timestamp", brief.Name(v))
		}
	}
	for _, attribute := range []string{"type", "source", "datacontenttype", "subject", "dataschema"} {
		if err := context.Validate()[attribute]; err != nil {
			return malformed("%s %q: %s", attribute, brief.Name(e[attribute]), strings.ToLower(brief.Name(fmt.Sprint(err))))
		}
	}
	return nil
}

// structured reads an event whose attributes and data are one JSON object.
func structured(r Record, within bounds) ([]decoded, error) {
	if !utf8.Valid(r.Value) {
		return nil, malformed("its JSON is not valid UTF-8")
	}
	return fromJSON(r.Value, within)
}

// batched reads a JSON array of events, all or none of them. An empty array has no messages.
func batched(r Record, within bounds) ([]decoded, error) {
	value := r.Value
	if !utf8.Valid(value) {
		return nil, malformed("its JSON is not valid UTF-8")
	}
	if n := elements(value); n > within.events {
		return nil, tooMany(n, "events", "MaxEvents", within.events)
	}
	var events []json.RawMessage
	if err := json.Unmarshal(value, &events); err != nil {
		return nil, malformed("batch is not a JSON array: %w", err)
	}
	if events == nil {
		return nil, malformed("batch is null")
	}
	messages := make([]decoded, 0, len(events))
	size, shared := r.Size(), storedWithEach(r)
	for i, raw := range events {
		m, err := fromJSON(raw, within)
		switch {
		case errors.Is(err, ErrTooLarge):
			return nil, fmt.Errorf("event %d of %d: %w", i+1, len(events), err)
		case err != nil:
			return nil, malformed("event %d of %d: %w", i+1, len(events), err)
		}
		size += messageSize(r, m[0].content, m[0].event)
		if i > 0 {
			size += shared
		}
		if size > within.bytes {
			return nil, within.tooBig(size)
		}
		messages = append(messages, m...)
	}
	return messages, nil
}

func fromJSON(raw []byte, within bounds) ([]decoded, error) {
	// Allow for the data, which is no attribute, and for members that are null.
	n := elements(raw)
	if n > 2*within.attributes+1 {
		return nil, tooMany(n-1, "attributes", "MaxAttributes", within.attributes)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, malformed("not a JSON object: %w", err)
	}
	if members == nil {
		return nil, malformed("event is null")
	}
	if n != len(members) { // encoding/json keeps only the last of members with the same name
		return nil, malformed("member %q comes twice", brief.Name(repeatedMember(raw)))
	}
	e := cloudEvent{}
	for name, value := range members {
		if name == "data" || name == "data_base64" || isNull(value) {
			continue // an attribute that is null is absent
		}
		text, err := attributeText(value)
		if err != nil {
			return nil, malformed("attribute %q: %w", brief.Name(name), err)
		}
		e[name] = text
	}
	if n := len(e); n > within.attributes {
		return nil, tooMany(n, "attributes", "MaxAttributes", within.attributes)
	}
	if err := checkMediaType(e["datacontenttype"]); err != nil {
		return nil, err
	}
	content, err := data(members, e["datacontenttype"])
	if err != nil {
		return nil, err
	}
	messages, err := one(e, content)
	if err == nil && content != nil && messages[0].contentType == "" && members["data_base64"] == nil {
		messages[0].contentType = "application/json" // implied by the CloudEvents JSON format, 3.1.2
	}
	return messages, err
}

// repeatedMember returns the first name that two members of a valid JSON object have.
func repeatedMember(object []byte) string {
	tokens := json.NewDecoder(bytes.NewReader(object))
	seen := map[string]bool{}
	var skipped json.RawMessage
	for _, err := tokens.Token(); err == nil && tokens.More(); err = tokens.Decode(&skipped) {
		token, _ := tokens.Token()
		name, _ := token.(string)
		if seen[name] {
			return name
		}
		seen[name] = true
	}
	return ""
}

// attributeText returns the canonical text of a string, number or boolean.
func attributeText(raw json.RawMessage) (string, error) {
	switch raw[0] {
	case '"':
		return unquote(raw)
	case '{', '[':
		return "", malformed("objects and arrays are not allowed")
	default:
		return string(raw), nil
	}
}

// unquote returns the text of a JSON string.
func unquote(raw json.RawMessage) (string, error) {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", err
	}
	// json replaces lone surrogates, by which two different IDs could become one.
	if strings.ContainsRune(text, utf8.RuneError) && !bytes.ContainsRune(raw, utf8.RuneError) &&
		!bytes.Contains(bytes.ToLower(raw), []byte(`\ufffd`)) {
		return "", malformed("it has half of a surrogate pair")
	}
	return text, nil
}

// data returns the event's payload: decoded base64, the text of a JSON string whose content type is not JSON, or
// otherwise the JSON as it came. It is nil if there is none.
func data(members map[string]json.RawMessage, contentType string) ([]byte, error) {
	encoded, hasBinary := members["data_base64"]
	raw, hasData := members["data"]
	if hasBinary && hasData {
		return nil, malformed("it has both data and data_base64")
	}
	if hasBinary && !isNull(encoded) {
		var text string
		if err := json.Unmarshal(encoded, &text); err != nil {
			return nil, malformed("data_base64 is not a string: %w", err)
		}
		content, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, malformed("data_base64: %w", err)
		}
		return content, nil
	}
	if !hasData {
		return nil, nil
	}
	if raw[0] == '"' && !isJSON(contentType) {
		text, err := unquote(raw)
		if err != nil {
			return nil, malformed("data: %w", err)
		}
		return []byte(text), nil
	}
	return raw, nil
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

// isJSON reports whether data of that content type is JSON. Without a content type it is (CloudEvents JSON format 3.1).
func isJSON(contentType string) bool {
	if contentType == "" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return false // validation reports it
	}
	return strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}
