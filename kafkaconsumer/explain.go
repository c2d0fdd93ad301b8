package kafkaconsumer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// explain adds to a broker's refusal what an operator has to know and the refusal does not say: who
// was refused, what is configured, and which right is missing on what. Other errors are returned
// unchanged.
func (c Config) explain(err error) error {
	var (
		unknown x509.UnknownAuthorityError
		remote  *net.OpError
		hint    string
	)
	switch {
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		hint = fmt.Sprintf("%s is refused: unknown, a wrong password, or without credentials for this mechanism", c.who())
	case errors.Is(err, kafka.UnsupportedSASLMechanism):
		hint = fmt.Sprintf("this listener of the broker does not offer %s", c.SASL.Mechanism)
	case errors.Is(err, kafka.IllegalSASLState):
		hint = "this listener of the broker does not use SASL"
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		hint = fmt.Sprintf("%s needs the right READ on the topics %q", c.who(), c.Topics)
	case errors.Is(err, kafka.GroupAuthorizationFailed):
		hint = fmt.Sprintf("%s needs the right READ on the group %q", c.who(), c.GroupID)
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition):
		hint = fmt.Sprintf("it does not exist, or %s lacks the right READ on the topic", c.who())
	case errors.As(err, &unknown):
		hint = "the broker's certificate is of no authority in TLS.RootCAs"
	case errors.As(err, &remote) && remote.Op == "remote error": // a TLS alert
		hint = "the broker does not accept the client's certificate"
		if !c.certified() {
			hint = "the broker requires a client certificate, TLS.Certificates is empty"
		}
	default:
		return err
	}
	return fmt.Errorf("%w (%s)", err, hint)
}

// explainSilence is explain for a consumer that no broker has answered yet. Brokers close
// connections that are not what they expect, without a reason. After the first answer a closed
// connection is an ordinary event.
func (c Config) explainSilence(err error) error {
	var shaking *handshakeError
	if !lost(err) || errors.As(err, &shaking) {
		return c.explain(err)
	}
	var missing []string
	if c.TLS == nil {
		missing = append(missing, "TLS")
	} else if !c.certified() {
		missing = append(missing, "a client certificate")
	}
	if c.SASL.Mechanism == "" {
		missing = append(missing, "SASL")
	}
	if len(missing) == 0 {
		return err
	}
	return fmt.Errorf("%w (the broker closed the connection: this listener may require %s)", err,
		strings.Join(missing, " or "))
}

// who describes the client as brokers see it.
func (c Config) who() string {
	switch {
	case c.SASL.Username != "":
		return fmt.Sprintf("user %q (%s)", c.SASL.Username, c.SASL.Mechanism)
	case c.SASL.Mechanism != "":
		return fmt.Sprintf("the user of %s", c.SASL.Mechanism)
	case c.certified():
		return "the user of the client's certificate"
	default:
		return "a client without a user"
	}
}

// certified reports whether the client has a certificate to show.
func (c Config) certified() bool {
	return c.TLS != nil && (len(c.TLS.Certificates) > 0 || c.TLS.GetClientCertificate != nil)
}

// refusedLogin reports whether err is a refused login.
func refusedLogin(err error) bool {
	return errors.Is(err, kafka.SASLAuthenticationFailed) || errors.Is(err, kafka.UnsupportedSASLMechanism) ||
		errors.Is(err, kafka.IllegalSASLState)
}

// lost reports whether err is a closed connection, as opposed to one that could not be opened or on
// which no answer came in time.
func lost(err error) bool {
	for _, known := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// handshakeError is why a connection could not be encrypted.
type handshakeError struct {
	address string
	err     error
}

func (e *handshakeError) Error() string {
	text := fmt.Sprintf("TLS handshake with %s: %v", e.address, e.err)
	var header tls.RecordHeaderError
	if lost(e.err) || errors.As(e.err, &header) {
		text += " (this listener of the broker may not use TLS)"
	}
	return text
}

func (e *handshakeError) Unwrap() error { return e.err }
