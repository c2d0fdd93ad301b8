package envelope

import (
	"bytes"
	"fmt"
	"mime"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/brief"
)

// cloudEvent holds the context attributes and extensions of one event. Their values are kept as they came, so that IDs
// and sources are never altered.
type cloudEvent struct {
	attributes map[string]string
}

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

// looksStructured reports whether a record's value may hold JSON events. It runs for every record, so it makes no
// strings.
func looksStructured(headers []handler.Header) bool {
	for _, h := range headers {
		if strings.EqualFold(h.Key, contentTypeHeader) && len(h.Value) >= len(eventMediaType) &&
			bytes.EqualFold(h.Value[:len(eventMediaType)], []byte(eventMediaType)) {
			return true
		}
	}
	return false
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
	for _, h := range headers {
		if h.Key == attributePrefix+"specversion" {
			return binaryEvent, nil
		}
	}
	return noEvent, nil
}

// binaryMode reads an event whose attributes are headers and whose data is the record's value.
func binaryMode(r Record, within bounds) ([]decoded, error) {
	e := &cloudEvent{attributes: map[string]string{}}
	for _, h := range r.Headers {
		name, ok := strings.CutPrefix(h.Key, attributePrefix)
		if !ok || h.Value == nil {
			continue // null means absent, as in the JSON format
		}
		if _, again := e.attributes[name]; again {
			return nil, malformed("header %q comes twice", brief.Name(h.Key))
		}
		if len(e.attributes) == within.attributes {
			return nil, tooMany(within.attributes+1, "attributes", "MaxAttributes", within.attributes)
		}
		e.attributes[name] = string(h.Value)
	}
	if contentType := header(r.Headers, contentTypeHeader); contentType != "" {
		e.attributes["datacontenttype"] = contentType
	}
	return one(e, r.Value)
}

// one validates the event and makes a message of it.
func one(e *cloudEvent, content []byte) ([]decoded, error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	a := e.attributes
	return []decoded{{typ: a["type"], source: a["source"], contentType: a["datacontenttype"], content: content, event: e}},
		nil
}

// validate checks everything except the ID, which is checked after routing.
func (e *cloudEvent) validate() error {
	for name, value := range e.attributes {
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
	if v := e.attributes["specversion"]; v != specVersion {
		return malformed("specversion is %q, supported is %s", brief.Name(v), specVersion)
	}
	context := event.EventContextV1{ID: "-", Type: e.attributes["type"]}
	if source := types.ParseURIRef(e.attributes["source"]); source != nil {
		context.Source = *source
	}
	if v, ok := e.attributes["datacontenttype"]; ok {
		if err := checkMediaType(v); err != nil {
			return err
		}
		context.DataContentType = &v
	}
	if v, ok := e.attributes["subject"]; ok {
		context.Subject = &v
	}
	if v, ok := e.attributes["dataschema"]; ok {
		if context.DataSchema = types.ParseURI(v); context.DataSchema == nil {
			return malformed("dataschema %q is not an absolute URI", brief.Name(v))
		}
	}
	if v, ok := e.attributes["time"]; ok {
		if _, err := types.ParseTime(v); err != nil {
			return malformed("time %q is not an RFC 3339 timestamp", brief.Name(v))
		}
	}
	for _, attribute := range []string{"type", "source", "datacontenttype", "subject", "dataschema"} {
		if err := context.Validate()[attribute]; err != nil {
			return malformed("%s %q: %s", attribute, brief.Name(e.attributes[attribute]), strings.ToLower(brief.Name(fmt.Sprint(err))))
		}
	}
	return nil
}
