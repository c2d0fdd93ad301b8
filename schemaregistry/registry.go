// Package schemaregistry reads and writes message bodies in the wire format of Confluent's schema registry: a zero
// byte, four bytes of schema ID, for Protobuf the message's indexes, and the encoded message. Avro and Protobuf are
// codecs for handlers and outgoing channels. Registry.TypeOf finds a record's message type for a channel's decoder.
//
//	client, err := sr.NewClient(sr.URLs("https://registry:8081"))
//	registry, err := schemaregistry.New(client)
//	placed, err := schemaregistry.NewAvro[OrderPlaced](registry, schemaregistry.Schema{Text: orderPlaced})
//	inbox.On("shop.OrderPlaced", inbox.Tx("reserve-stock", reserveStock, handler.WithCodec(placed)))
//
// # What goes wrong
//
// A registry that cannot be reached, or refuses the client, makes no message bad. Decode returns handler.Snooze, which
// charges no attempt, and TypeOf envelope.ErrUnavailable, which makes the record's partition wait.
//
// A schema ID that the registry does not know counts as such an outage for 5 seconds: replicas of a registry learn of a
// new schema late. After that TypeOf makes the record bad, and Decode returns handler.RetryAfter: each attempt counts,
// so MaxRetries bounds them. All other defects of a body last, and poison the message at once.
package schemaregistry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/settings"
)

// ErrUnknownSchema means that the registry has no schema with the ID of a body, or that a subject does not have the
// schema of an outgoing one.
var ErrUnknownSchema = errors.New("the registry does not know the schema")

// Options configure a Registry. Start from DefaultOptions: zero values are values.
type Options struct {
	// Timeout bounds what is asked for one schema, references included. A codec and TypeOf have no context: a stop and a
	// rebalance wait for them. Do not set it near the consumer's rebalance timeout. Give a client of several URLs an HTTP
	// client with a shorter timeout, so that there is time to ask the next. At least 1 ms; default 3 s.
	Timeout time.Duration `yaml:"timeout" env:"TIMEOUT"`
	// Logger is where the beginning and the end of an outage are logged: a snoozed status does not say why it waits. Do
	// not leave it out in production. Default nil, which logs nothing.
	Logger *zap.Logger `yaml:"-" env:"-"`
	// Clock replaces the system clock, for tests. Default nil, the system's.
	Clock clock.Clock `yaml:"-" env:"-"`
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options { return Options{Timeout: 3 * time.Second} }

const (
	// failurePause is how long a failure is remembered: the registry is asked for one ID that often at most.
	failurePause = time.Second
	// retryPause is when a handler's next attempt follows if its schema could not be read.
	retryPause = 5 * time.Second
	// unknownGrace is how long an unknown schema ID counts as one that the registry will soon know. It is short, because
	// each corrupt record with another ID holds up its partition as long.
	unknownGrace = 5 * time.Second
	// unknownForgotten is how long after an ID was last asked for that grace starts again: it may be registered by then,
	// and a replica not know it yet. It is far longer than the pauses between a handler's attempts, which would else never
	// be charged.
	unknownForgotten = 10 * time.Minute
	// maxFailures bounds the IDs whose failure is remembered. Corrupt records may name any number of them.
	maxFailures = 1000
)

// Registry reads schemas by their IDs and keeps them: under an ID a registry never has another schema. Concurrent
// requests for one ID are one. It is safe for concurrent use. Use one for all channels and codecs of a process.
type Registry struct {
	client  *sr.Client
	options Options
	outage  *condition.Condition

	requests singleflight.Group // by ID
	schemas  sync.Map           // *schema by ID
	mu       sync.Mutex
	failures map[int]failure // by ID
}

// failure is why a schema could not be read.
type failure struct {
	err          error
	until        time.Time // when the registry may be asked again
	unknownSince time.Time // of an unknown ID: when its grace began
}

// schema is a writer's schema.
type schema struct {
	id       int
	kind     sr.SchemaType
	avro     *avro.Schema // of Avro
	name     string       // of an Avro record; else empty
	messages []message    // of Protobuf
}

// New returns a Registry that asks by client, which brings the addresses, credentials and TLS. Each function of
// configure may change the options, which start as DefaultOptions. Nothing is sent yet. The error names an option that
// is out of range, its value and what is allowed.
func New(client *sr.Client, configure ...func(o *Options)) (*Registry, error) {
	o := settings.With(DefaultOptions(), configure)
	switch {
	case client == nil:
		return nil, errors.New("schemaregistry: client is nil")
	case o.Timeout < time.Millisecond:
		return nil, fmt.Errorf("schemaregistry: option Timeout = %s: must be 1ms or more", o.Timeout)
	}
	o.Logger, o.Clock = cmp.Or(o.Logger, zap.NewNop()), cmp.Or[clock.Clock](o.Clock, clock.System{})
	return &Registry{client: client, options: o, failures: map[int]failure{}, outage: condition.New(o.Logger, o.Clock,
		zap.WarnLevel, "schema registry", "messages wait whose schemas are not known yet")}, nil
}

// TypeOf returns the message type of a record in the wire format: the full name of its Avro record or Protobuf message,
// such as "shop.OrderPlaced". It is made for DecoderConfig.TypeOf. A record that names no such type is bad. So is a
// tombstone: to handle those, wrap TypeOf in a function that returns a type of yours where the value is nil. A schema
// that cannot be read yet is envelope.ErrUnavailable. Do not use it on a channel with plain records in other formats.
func (r *Registry) TypeOf(record envelope.Record) (string, error) {
	s, rest, err := r.schemaOf(record.Value)
	switch {
	case err != nil:
		return "", err
	case s.kind == sr.TypeProtobuf:
		name, _, err := s.message(rest)
		return name, err
	case s.name == "":
		return "", fmt.Errorf("schema %d: has no name: must be an Avro record", s.id)
	}
	return s.name, nil
}

// schemaOf returns the schema that a body names, and what follows its ID.
func (r *Registry) schemaOf(body []byte) (*schema, []byte, error) {
	id, rest, err := new(sr.ConfluentHeader).DecodeID(body)
	if err != nil || id > math.MaxInt32 {
		return nil, nil, fmt.Errorf("body of %d bytes does not begin with a zero byte and a schema ID", len(body))
	}
	s, err := r.schema(id)
	if err != nil {
		return nil, nil, fmt.Errorf("schema %d: %w", id, err)
	}
	return s, rest, nil
}

// schema returns the schema with an ID, from the cache or the registry.
func (r *Registry) schema(id int) (*schema, error) {
	if known, ok := r.schemas.Load(id); ok {
		return known.(*schema), nil
	}
	found, err, _ := r.requests.Do(strconv.Itoa(id), func() (any, error) {
		if known, ok := r.schemas.Load(id); ok { // since the first look
			return known, nil
		}
		r.mu.Lock()
		f := r.failures[id]
		r.mu.Unlock()
		if r.options.Clock.Now().Before(f.until) {
			return nil, f.err
		}
		ctx, cancel := context.WithTimeout(context.Background(), r.options.Timeout)
		defer cancel()
		s, err := r.read(ctx, id)
		if err != nil {
			return nil, r.failed(id, err)
		}
		return r.loaded(s), nil
	})
	if err != nil {
		return nil, err
	}
	return found.(*schema), nil
}

// failed remembers a failure for failurePause, and returns it. An unknown ID is unavailable during unknownGrace.
func (r *Registry) failed(id int, err error) error {
	r.note(err)
	now := r.options.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.failures[id]
	if errors.Is(err, ErrUnknownSchema) {
		if !errors.Is(f.err, ErrUnknownSchema) || now.Sub(f.until) > unknownForgotten {
			f.unknownSince = now
		}
		if now.Sub(f.unknownSince) < unknownGrace {
			err = fmt.Errorf("%w: %w", envelope.ErrUnavailable, err)
		}
	}
	if len(r.failures) >= maxFailures {
		clear(r.failures)
	}
	r.failures[id] = failure{err, now.Add(failurePause), f.unknownSince}
	return err
}

// loaded keeps a schema, forgets its ID's failure and returns the schema.
func (r *Registry) loaded(s *schema) *schema {
	r.note(nil)
	r.schemas.Store(s.id, s)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failures, s.id)
	return s
}

// note notes for the log whether the registry answers.
func (r *Registry) note(err error) {
	if errors.Is(err, envelope.ErrUnavailable) {
		r.outage.Begin(nil, err)
	} else {
		r.outage.End(nil)
	}
}

// read asks the registry for a schema and parses it.
func (r *Registry) read(ctx context.Context, id int) (*schema, error) {
	found, err := r.client.SchemaByID(ctx, id)
	if err != nil {
		return nil, explain(err)
	}
	s := &schema{id: id, kind: found.Type}
	switch found.Type {
	case sr.TypeAvro:
		if s.avro, err = r.parseAvro(ctx, new(avro.SchemaCache), map[sr.SubjectVersion]bool{}, found); err == nil {
			s.name = fullName(s.avro)
		}
	case sr.TypeProtobuf:
		s.messages, err = parseProtobuf(found.Schema)
	default:
		err = fmt.Errorf("its type is %s: must be AVRO or PROTOBUF", found.Type)
	}
	return s, err
}

// parseAvro parses a schema after those that it refers to. It asks only for those that are not in seen yet. One that
// was deleted from its subject is found, too: the topic may still have records that need it.
func (r *Registry) parseAvro(
	ctx context.Context, cache *avro.SchemaCache, seen map[sr.SubjectVersion]bool, s sr.Schema,
) (*avro.Schema, error) {
	for _, reference := range s.References {
		of := sr.SubjectVersion{Subject: reference.Subject, Version: reference.Version}
		if seen[of] {
			continue
		}
		seen[of] = true
		found, err := r.client.SchemaByVersion(sr.WithParams(ctx, sr.ShowDeleted), of.Subject, of.Version)
		if err != nil {
			return nil, fmt.Errorf("subject %q, version %d: %w", of.Subject, of.Version, explain(err))
		}
		if _, err := r.parseAvro(ctx, cache, seen, found.Schema); err != nil {
			return nil, err
		}
	}
	return cache.Parse(s.Schema)
}

// fullName returns the name of a record with its namespace, and nothing for other types.
func fullName(s *avro.Schema) string {
	root := s.Root()
	switch {
	case root.Type != "record":
		return ""
	case root.Namespace == "" || strings.Contains(root.Name, "."):
		return root.Name
	}
	return root.Namespace + "." + root.Name
}

// explain says what an error of the client means, nil for none. A refusal that is about the schema lasts. All else may
// pass: an outage, a timeout, and also a login or a URL that is wrong, which an operator corrects.
func explain(err error) error {
	refused, ok := errors.AsType[*sr.ResponseError](err)
	switch {
	case err == nil:
		return nil
	case ok && sr.IsNotFoundError(refused.ErrorCode):
		return fmt.Errorf("%w: %w", ErrUnknownSchema, err)
	case ok && (refused.ErrorCode == sr.ErrIncompatibleSchema.Code || sr.IsInvalidRequestError(refused.ErrorCode)):
		return err
	}
	return fmt.Errorf("%w: %w", envelope.ErrUnavailable, err)
}

// undecoded returns the error of Decode if a body's schema could not be had.
func undecoded(err error) error {
	switch {
	case errors.Is(err, envelope.ErrUnavailable):
		return fmt.Errorf("%w (%w)", err, handler.Snooze(retryPause))
	case errors.Is(err, ErrUnknownSchema):
		return handler.RetryAfter(retryPause, err)
	}
	return err
}

// Schema is the schema of the messages that a codec encodes. It is also the one that Avro decodes to.
type Schema struct {
	// Text is an Avro schema in JSON, or a .proto file. Avro requires it; Protobuf does to encode.
	Text string
	// References are the registered schemas that a .proto file imports, except Google's own. Avro's Text must be complete
	// instead: leave it empty there.
	References []sr.SchemaReference
	// Subject is where the schema is registered: "{topic}-value" under Confluent's default, the strategy of topic names.
	// Default the message's full name, which is the strategy of record names. Only Encode uses it.
	Subject string
	// AutoRegister registers the schema with the subject if it is not there. Do not set it in production: a deploy with a
	// wrong schema would change what others read. Default false: Encode fails with ErrUnknownSchema until it is
	// registered.
	AutoRegister bool
}

// encoder knows how the messages of a schema begin.
type encoder struct {
	registry *Registry
	schema   sr.Schema
	subject  string
	register bool
	indexes  []int // of Protobuf
	prefix   atomic.Pointer[[]byte]
}

func newEncoder(r *Registry, s Schema, kind sr.SchemaType, name string, indexes []int) *encoder {
	return &encoder{registry: r, subject: cmp.Or(s.Subject, name), register: s.AutoRegister, indexes: indexes,
		schema: sr.Schema{Schema: s.Text, Type: kind, References: s.References}}
}

// begin returns what every body begins with, as a copy: the body of an empty message is nothing more. The first call
// that succeeds asks the registry for the schema's ID.
func (e *encoder) begin() ([]byte, error) {
	if known := e.prefix.Load(); known != nil {
		return slices.Clone(*known), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.registry.options.Timeout)
	defer cancel()
	id, err := e.id(ctx)
	e.registry.note(err)
	if err != nil {
		return nil, fmt.Errorf("schema of subject %q: %w", e.subject, err)
	}
	prefix, err := new(sr.ConfluentHeader).AppendEncode(nil, id, e.indexes) // its error is always nil
	e.prefix.Store(&prefix)
	return slices.Clone(prefix), err
}

// id asks for the schema's ID.
func (e *encoder) id(ctx context.Context) (int, error) {
	if e.register {
		id, err := e.registry.client.RegisterSchema(ctx, e.subject, e.schema, -1, -1)
		return id, explain(err)
	}
	found, err := e.registry.client.LookupSchema(ctx, e.subject, e.schema)
	if err = explain(err); errors.Is(err, ErrUnknownSchema) {
		err = fmt.Errorf("%w: register it, or set Schema.Subject or AutoRegister", err)
	}
	return found.ID, err
}
