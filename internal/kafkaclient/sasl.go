package kafkaclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// SASL has the fields of kafkaconsumer.SASL, which documents them and converts to it. Do not print one with secrets.
type SASL struct {
	Mechanism       string
	Username        string
	Password        string
	Custom          sasl.Mechanism
	AllowWithoutTLS bool
}

// validate returns an error if no connection can be authenticated this way.
func (s SASL) validate(encryption *tls.Config) error {
	mechanism, err := s.mechanism()
	if err == nil && mechanism != nil && mechanism.Name() == "PLAIN" && encryption == nil && !s.AllowWithoutTLS {
		err = errors.New("option SASL mechanism is PLAIN without TLS, which sends the password as it is: " +
			"set TLS, or SASL.AllowWithoutTLS if that is meant")
	}
	return err
}

// mechanism returns the mechanism that kafka-go authenticates with, nil without SASL.
func (s SASL) mechanism() (sasl.Mechanism, error) {
	if s.Mechanism == "" {
		if s.Username != "" || s.Password != "" {
			return nil, errors.New("option SASL has a username or password but no mechanism: " +
				"set PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
		}
		if s.Custom == nil {
			return nil, nil
		}
		return customSASL{s.Custom}, nil
	}
	if s.Custom != nil {
		return nil, fmt.Errorf("option SASL has both mechanism %q and a custom one: set one of them", s.Mechanism)
	}
	if s.Username == "" {
		return nil, fmt.Errorf("option SASL mechanism %s has an empty username: set one", s.Mechanism)
	}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Mechanism{Username: s.Username, Password: s.Password}, nil
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
		algorithm := scram.SHA256
		if s.Mechanism == "SCRAM-SHA-512" {
			algorithm = scram.SHA512
		}
		mechanism, err := scram.Mechanism(algorithm, s.Username, s.Password)
		if err != nil {
			// Omit the error itself: it quotes the text it refuses, which may be the password.
			return nil,
				fmt.Errorf("option SASL username or password cannot be used with %s: must have no characters that SASLprep (RFC 4013) prohibits", s.Mechanism)
		}
		return boundedSCRAM{mechanism}, nil
	default:
		return nil, fmt.Errorf("option SASL mechanism = %q: must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", s.Mechanism)
	}
}

// WithoutSecrets returns the part that may stay in memory that could be printed: fmt does not call the methods of
// unexported fields.
func (s SASL) WithoutSecrets() SASL {
	if s.Custom != nil {
		return SASL{Mechanism: s.Custom.Name(), AllowWithoutTLS: s.AllowWithoutTLS}
	}
	return SASL{Mechanism: s.Mechanism, Username: s.Username, AllowWithoutTLS: s.AllowWithoutTLS}
}

// maxIterations bounds the computation that a broker may demand of a client before the login, to about a second. Kafka
// stores at most 16,384 iterations.
const maxIterations = 1 << 20

// boundedSCRAM refuses a broker's challenge that would take hours to answer. Nothing can interrupt
// that computation once it has begun.
type boundedSCRAM struct{ sasl.Mechanism }

func (m boundedSCRAM) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	session, first, err := m.Mechanism.Start(ctx)
	return boundedSCRAMSession{session}, first, err
}

type boundedSCRAMSession struct{ sasl.StateMachine }

func (s boundedSCRAMSession) Next(ctx context.Context, challenge []byte) (bool, []byte, error) {
	for field := range bytes.SplitSeq(challenge, []byte(",")) {
		count, found := bytes.CutPrefix(field, []byte("i="))
		if !found {
			continue
		}
		if n, err := strconv.Atoi(string(count)); err != nil || n > maxIterations {
			const what = "authenticate: the broker asks for %.20q iterations of SCRAM, of %d at most"
			return false, nil, fmt.Errorf(what, count, maxIterations)
		}
	}
	return s.StateMachine.Next(ctx, challenge)
}

// customSASL marks the errors of a mechanism that is not ours, for example of a credential service that is down.
type customSASL struct{ sasl.Mechanism }

func (m customSASL) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	session, first, err := m.Mechanism.Start(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("authenticate: %w", err)
	}
	return customSASLSession{session}, first, nil
}

type customSASLSession struct{ sasl.StateMachine }

func (s customSASLSession) Next(ctx context.Context, challenge []byte) (bool, []byte, error) {
	done, response, err := s.StateMachine.Next(ctx, challenge)
	if err != nil {
		err = fmt.Errorf("authenticate: %w", err)
	}
	return done, response, err
}
