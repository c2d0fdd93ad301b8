package schemaregistry

import (
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/gorm-inbox/inbox/handler"
)

// Avro decodes and encodes bodies of one type. A body is read by the schema that it names and resolved to the codec's,
// by Avro's rules: fields that the writer did not have get their defaults, others that the reader does not have are
// skipped. T is a struct with `avro` tags, as github.com/twmb/avro reads them, or map[string]any. It is safe for
// concurrent use.
type Avro[T any] struct {
	registry *Registry
	schema   *avro.Schema
	encoder  *encoder
	resolved sync.Map // *avro.Schema by the writer's schema ID
}

// NewAvro returns a codec for a schema. The error says why the schema cannot be parsed. Nothing is sent yet.
func NewAvro[T any](r *Registry, s Schema) (*Avro[T], error) {
	parsed, err := avro.Parse(s.Text)
	if err != nil {
		return nil, fmt.Errorf("schemaregistry: Schema.Text: %w", err)
	}
	if len(s.References) > 0 {
		return nil, errors.New("schemaregistry: Schema.References: must be empty for Avro: put the types into Schema.Text")
	}
	return &Avro[T]{registry: r, schema: parsed, encoder: newEncoder(r, s, sr.TypeAvro, fullName(parsed), nil)}, nil
}

// Decode reads a body into T. If its schema cannot be read yet, the error is handler.Snooze or handler.RetryAfter. All
// others are defects that last: no wire format, a schema of another kind, one that cannot be resolved to the codec's, a
// body that is too short or too long for its schema, and values that T does not hold.
func (a *Avro[T]) Decode(_ handler.Metadata, content []byte) (T, error) {
	var payload T
	s, body, err := a.registry.schemaOf(content)
	if err != nil {
		return payload, undecoded(err)
	}
	by, err := a.resolve(s)
	if err != nil {
		return payload, err
	}
	rest, err := by.Decode(body, &payload)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes follow the message", len(rest))
	}
	if err != nil {
		return payload, fmt.Errorf("schema %d: %w", s.id, err)
	}
	return payload, nil
}

// resolve returns what decodes bodies of a writer's schema.
func (a *Avro[T]) resolve(s *schema) (*avro.Schema, error) {
	if known, ok := a.resolved.Load(s.id); ok {
		return known.(*avro.Schema), nil
	}
	if s.avro == nil {
		return nil, fmt.Errorf("schema %d: its type is %s: must be AVRO", s.id, s.kind)
	}
	resolved, err := avro.Resolve(s.avro, a.schema)
	if err != nil {
		return nil, fmt.Errorf("schema %d: %w", s.id, err)
	}
	a.resolved.Store(s.id, resolved)
	return resolved, nil
}

// Encode returns the payload in the wire format, without a media type, as Confluent's serializers do. The first call
// asks the registry for the schema's ID: call it once at start, so that no transaction waits for that. An error is
// envelope.ErrUnavailable if the registry cannot be asked and ErrUnknownSchema if the subject does not have the schema.
func (a *Avro[T]) Encode(payload T) ([]byte, string, error) {
	prefix, err := a.encoder.begin()
	if err != nil {
		return nil, "", err
	}
	content, err := a.schema.AppendEncode(prefix, &payload)
	return content, "", err
}
