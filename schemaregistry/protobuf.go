package schemaregistry

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/bufbuild/protocompile/ast"
	"github.com/bufbuild/protocompile/parser"
	"github.com/bufbuild/protocompile/reporter"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"

	"github.com/gorm-inbox/inbox/handler"
)

// Protobuf decodes and encodes bodies of one generated type, such as *orderspb.OrderPlaced. Protobuf's own rules make
// old and new messages readable. The schema that a body names only says which message it has: another one is refused,
// because its bytes might decode without an error. It is safe for concurrent use.
type Protobuf[T proto.Message] struct {
	registry *Registry
	empty    T
	name     string
	encoder  *encoder // nil without Schema.Text
}

// NewProtobuf returns a codec for a generated type. The error says why the schema cannot be parsed, or that it does not
// declare the type's message. The zero Schema makes a codec that only decodes. Nothing is sent yet.
func NewProtobuf[T proto.Message](r *Registry, s Schema) (*Protobuf[T], error) {
	var empty T
	if reflect.TypeFor[T]().Kind() != reflect.Pointer {
		return nil, fmt.Errorf("schemaregistry: %s: must be a pointer to a generated type", reflect.TypeFor[T]())
	}
	p := &Protobuf[T]{registry: r, empty: empty, name: string(empty.ProtoReflect().Descriptor().FullName())}
	if s.Text == "" {
		return p, nil
	}
	messages, err := parseProtobuf(s.Text)
	if err != nil {
		return nil, fmt.Errorf("schemaregistry: Schema.Text: %w", err)
	}
	indexes := indexesOf(messages, p.name)
	if indexes == nil {
		return nil, fmt.Errorf("schemaregistry: Schema.Text: does not declare the message %s", p.name)
	}
	p.encoder = newEncoder(r, s, sr.TypeProtobuf, p.name, indexes)
	return p, nil
}

// Decode reads a body into a new T. If its schema cannot be read yet, the error is handler.Snooze or
// handler.RetryAfter. All others are defects that last: no wire format, a schema of another kind, another message, and
// bytes that are no Protobuf.
func (p *Protobuf[T]) Decode(_ handler.Metadata, content []byte) (T, error) {
	s, rest, err := p.registry.schemaOf(content)
	if err != nil {
		return p.empty, undecoded(err)
	}
	name, body, err := s.message(rest)
	if err == nil && name != p.name {
		err = fmt.Errorf("schema %d: the message is %s: must be %s", s.id, name, p.name)
	}
	if err != nil {
		return p.empty, err
	}
	payload := p.empty.ProtoReflect().New().Interface().(T)
	if err := proto.Unmarshal(body, payload); err != nil {
		return p.empty, fmt.Errorf("schema %d: %s: %w", s.id, name, err)
	}
	return payload, nil
}

// Encode returns the payload in the wire format, without a media type, as Confluent's serializers do. The first call
// asks the registry for the schema's ID: call it once at start, so that no transaction waits for that. An error is
// envelope.ErrUnavailable if the registry cannot be asked and ErrUnknownSchema if the subject does not have the schema.
func (p *Protobuf[T]) Encode(payload T) ([]byte, string, error) {
	if p.encoder == nil {
		return nil, "", errors.New("schemaregistry: the codec only decodes: set Schema.Text to the .proto file")
	}
	prefix, err := p.encoder.begin()
	if err != nil {
		return nil, "", err
	}
	content, err := proto.MarshalOptions{}.MarshalAppend(prefix, payload)
	return content, "", err
}

// message is one that a .proto file declares, with those declared in it.
type message struct {
	name   string // with its package and what it is declared in
	nested []message
}

// maxIndexes bounds how deep the message of a body may be declared. The Protobuf compiler allows 32.
const maxIndexes = 32

// message returns the name of the message that a body has, and the body after its indexes.
func (s *schema) message(body []byte) (name string, rest []byte, err error) {
	if s.kind != sr.TypeProtobuf {
		return "", nil, fmt.Errorf("schema %d: its type is %s: must be PROTOBUF", s.id, s.kind)
	}
	path, rest, err := new(sr.ConfluentHeader).DecodeIndex(body, maxIndexes)
	if err != nil {
		return "", nil, fmt.Errorf("schema %d: the message indexes cannot be read: %w", s.id, err)
	}
	declared := s.messages
	for _, index := range path {
		if index < 0 || index >= len(declared) {
			return "", nil, fmt.Errorf("schema %d: does not declare the message with the indexes %v", s.id, path)
		}
		name, declared = declared[index].name, declared[index].nested
	}
	return name, rest, nil
}

// parseProtobuf returns the messages that a .proto file declares. Only its syntax is read: what it imports need not be
// there. Indexes count the messages in the text, as in Confluent's serializers. Descriptors also count the entries of
// maps, which may come before a nested message.
func parseProtobuf(text string) ([]message, error) {
	file, err := parser.Parse("schema.proto", strings.NewReader(text), reporter.NewHandler(nil))
	if err != nil {
		return nil, err
	}
	scope := ""
	for _, d := range file.Decls {
		if p, ok := d.(*ast.PackageNode); ok {
			scope = string(p.Name.AsIdentifier()) + "."
		}
	}
	return declaredIn(scope, file.Decls), nil
}

func declaredIn[D any](scope string, declarations []D) (all []message) {
	for _, d := range declarations {
		if m, ok := any(d).(*ast.MessageNode); ok {
			name := scope + m.Name.Val
			all = append(all, message{name, declaredIn(name+".", m.Decls)})
		}
	}
	return all
}

// indexesOf returns the indexes of the message with a name, nil if there is none.
func indexesOf(messages []message, name string) []int {
	for i, m := range messages {
		if m.name == name {
			return []int{i}
		}
		if deeper := indexesOf(m.nested, name); deeper != nil {
			return append([]int{i}, deeper...)
		}
	}
	return nil
}
