package kafkaconsumer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/stretchr/testify/require"
)

var errNoToken = errors.New("the token service is down")

// noToken is a cloud's mechanism whose token service is down.
type noToken struct{}

func (noToken) Name() string { return "OAUTHBEARER" }

func (noToken) Start(context.Context) (sasl.StateMachine, []byte, error) { return nil, nil, errNoToken }

func TestConnectionErrorsNeverHaltAPartition(t *testing.T) {
	_, _, login := customSASL{noToken{}}.Start(context.Background())
	for name, err := range map[string]error{
		"certificate": &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
		"no TLS":      tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"},
		"alert":       tls.AlertError(42),
		"login":       login,
	} {
		require.False(t, fatal(fmt.Errorf("fetch: %w", err)), name)
	}
	require.ErrorIs(t, login, errNoToken)
}
