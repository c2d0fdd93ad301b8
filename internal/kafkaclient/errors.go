package kafkaclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/segmentio/kafka-go"
)

// Explain adds to a broker's refusal of a connection the facts that an operator needs: the refused user and the
// configuration. Other errors are returned unchanged.
func (c Config) Explain(err error) error {
	var (
		unknown x509.UnknownAuthorityError
		remote  *net.OpError
		hint    string
	)
	switch {
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		hint = fmt.Sprintf("%s is refused: unknown, a wrong password, or without credentials for this mechanism", c.Who())
	case errors.Is(err, kafka.UnsupportedSASLMechanism):
		hint = fmt.Sprintf("this listener of the broker does not offer %s", c.SASL.Mechanism)
	case errors.Is(err, kafka.IllegalSASLState):
		hint = "this listener of the broker does not use SASL"
	case errors.As(err, &unknown):
		hint = "the broker's certificate is of no authority in TLS.RootCAs"
	case errors.As(err, &remote) && remote.Op == "remote error": // a TLS alert
		hint = "the broker does not accept the client's certificate"
		if !c.Certified() {
			hint = "the broker requires a client certificate, TLS.Certificates is empty"
		}
	default:
		return err
	}
	return fmt.Errorf("%w (%s)", err, hint)
}

// Who describes the client as brokers see it.
func (c Config) Who() string {
	switch {
	case c.SASL.Username != "":
		return fmt.Sprintf("user %q (%s)", c.SASL.Username, c.SASL.Mechanism)
	case c.SASL.Mechanism != "":
		return fmt.Sprintf("the user of %s", c.SASL.Mechanism)
	case c.Certified():
		return "the user of the client's certificate"
	default:
		return "a client without a user"
	}
}

// Certified reports whether the client has a certificate to show.
func (c Config) Certified() bool {
	return c.TLS != nil && (len(c.TLS.Certificates) > 0 || c.TLS.GetClientCertificate != nil)
}

// Lost reports whether err is a closed connection, as opposed to one that could not be opened or on
// which no answer came in time.
func Lost(err error) bool {
	return IsAny(err, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE)
}

// TimedOut reports whether err is that no answer came in time, or no connection.
func TimedOut(err error) bool {
	timeout, is := errors.AsType[net.Error](err)
	return is && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// IsAny reports whether err is one of the known errors.
func IsAny(err error, known ...error) bool {
	return slices.ContainsFunc(known, func(one error) bool { return errors.Is(err, one) })
}

// HandshakeError is why a connection could not be encrypted.
type HandshakeError struct {
	Address string
	Err     error
}

// Error names the address, the error, and whether the listener may not use TLS.
func (e *HandshakeError) Error() string {
	text := fmt.Sprintf("TLS handshake with %s: %v", e.Address, e.Err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](e.Err)
	if noTLS || Lost(e.Err) || IsAny(e.Err, context.DeadlineExceeded, os.ErrDeadlineExceeded) {
		text += " (this listener of the broker may not use TLS)"
	}
	return text
}

// Unwrap returns the handshake's error.
func (e *HandshakeError) Unwrap() error { return e.Err }
