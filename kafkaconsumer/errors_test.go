package kafkaconsumer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConnectionErrorsNeverHaltAPartition(t *testing.T) {
	for name, err := range map[string]error{
		"certificate": &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
		"no TLS":      tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"},
		"alert":       tls.AlertError(42),
		"login":       errors.New("authenticate: the token service is down"),
	} {
		require.False(t, fatal(fmt.Errorf("fetch: %w", err)), name)
	}
}
