package kafkaconsumer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/kafkaclient"
)

func TestRefusalErrorsNameUserResourceAndRight(t *testing.T) {
	scram := Config{Topics: []string{"orders"}, GroupID: "billing",
		SASL: SASL{Mechanism: "SCRAM-SHA-512", Username: "alice"}}
	own := Config{SASL: SASL{Mechanism: "OAUTHBEARER"}.withoutSecrets()}
	anonymous := Config{TLS: &tls.Config{}}
	certified := Config{Topics: []string{"orders"},
		TLS: &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return nil,
				nil
		}}}
	alert := &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}
	for name, c := range map[string]struct {
		cfg  Config
		err  error
		want string
	}{
		"login":                  {scram, kafka.SASLAuthenticationFailed, `user "alice" (SCRAM-SHA-512) is refused`},
		"login by own mechanism": {own, kafka.SASLAuthenticationFailed, `the user of OAUTHBEARER is refused`},
		"mechanism":              {scram, kafka.UnsupportedSASLMechanism, `does not offer SCRAM-SHA-512`},
		"no SASL there":          {scram, kafka.IllegalSASLState, `does not use SASL`},
		"topic": {scram, kafka.TopicAuthorizationFailed,
			`user "alice" (SCRAM-SHA-512) needs the right READ on the topics ["orders"]`},
		"topic by certificate": {certified, kafka.TopicAuthorizationFailed,
			`the user of the client's certificate needs the right READ on the topics ["orders"]`},
		"topic without a user": {anonymous, kafka.TopicAuthorizationFailed, `a client without a user needs`},
		"group":                {scram, kafka.GroupAuthorizationFailed, `needs the right READ on the group "billing"`},
		"gone or unseen": {scram, protocol.NewErrNoPartition("orders", 1),
			`does not exist, or user "alice" (SCRAM-SHA-512) lacks`},
		"gone or unseen topic": {scram, protocol.NewErrNoTopic("orders"),
			`does not exist, or user "alice" (SCRAM-SHA-512) lacks`},
		"authority": {anonymous, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
			`of no authority in TLS.RootCAs`},
		"no certificate":    {anonymous, alert, `requires a client certificate, TLS.Certificates is empty`},
		"a bad certificate": {certified, alert, `does not accept the client's certificate`},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.cfg.explain(fmt.Errorf("context: %w", c.err))
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, c.want)
			require.Equal(t, err.Error(), c.cfg.explainSilence(fmt.Errorf("context: %w", c.err)).Error())
		})
	}
	for _, ordinary := range []error{io.EOF, syscall.ECONNREFUSED, kafka.NotLeaderForPartition, errors.New("other")} {
		require.Equal(t, ordinary, scram.explain(ordinary), "an ordinary error stays as it is")
	}
}

func TestClosedConnectionErrorNamesPossibleRequirements(t *testing.T) {
	login := SASL{Mechanism: "PLAIN", Username: "alice"}
	certificate := &tls.Config{Certificates: make([]tls.Certificate, 1)}
	for want, cfg := range map[string]Config{
		"may require TLS or SASL)":                  {},
		"may require TLS)":                          {SASL: login},
		"may require a client certificate or SASL)": {TLS: &tls.Config{}},
		"may require a client certificate)":         {TLS: &tls.Config{}, SASL: login},
		"may require SASL)":                         {TLS: certificate},
	} {
		for _, lost := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
			err := cfg.explainSilence(fmt.Errorf("ask: %w", lost))
			require.ErrorIs(t, err, lost)
			require.ErrorContains(t, err, want)
		}
	}
	all := Config{TLS: certificate, SASL: login}
	require.Equal(t, io.EOF, all.explainSilence(io.EOF))
	for _, silent := range []error{io.EOF, context.DeadlineExceeded, os.ErrDeadlineExceeded} {
		shaking := &kafkaclient.HandshakeError{Address: "kafka:9092", Err: silent}
		require.Equal(t, "TLS handshake with kafka:9092: "+silent.Error()+" (this listener of the broker may not use TLS)",
			(Config{TLS: &tls.Config{}}).explainSilence(shaking).Error())
	}
}
