package kafkaclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/stretchr/testify/require"
)

var errNoToken = errors.New("the token service is down")

// noToken is a cloud's mechanism whose token service is down.
type noToken struct{}

func (noToken) Name() string { return "OAUTHBEARER" }

func (noToken) Start(context.Context) (sasl.StateMachine, []byte, error) { return nil, nil, errNoToken }

func TestErrorOfACustomMechanismIsMarked(t *testing.T) {
	mechanism, err := SASL{Custom: noToken{}}.mechanism()
	require.NoError(t, err)
	_, _, err = mechanism.Start(t.Context())
	require.ErrorIs(t, err, errNoToken)
	require.ErrorContains(t, err, "authenticate: ")
}

// TestSCRAMComputesNoMoreThanItsBound proves contract 7.5: a party that impersonates the broker
// cannot keep a client computing.
func TestSCRAMComputesNoMoreThanItsBound(t *testing.T) {
	for iterations, says := range map[string]string{
		"4096": "", "16384": "",
		"1048577":              `asks for "1048577" iterations of SCRAM, of 1048576 at most`,
		"2147483647":           "iterations of SCRAM",
		"99999999999999999999": "iterations of SCRAM",
	} {
		for _, name := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
			mechanism, err := SASL{Mechanism: name, Username: "user", Password: "password"}.mechanism()
			require.NoError(t, err)
			require.Equal(t, name, mechanism.Name())
			session, first, err := mechanism.Start(t.Context())
			require.NoError(t, err)
			_, nonce, _ := strings.Cut(string(first), "r=")
			_, answer, err := session.Next(t.Context(), fmt.Appendf(nil, "r=%sserver,s=c2FsdA==,i=%s", nonce, iterations))
			if says == "" {
				require.NoError(t, err)
				require.Contains(t, string(answer), ",p=")
				continue
			}
			require.ErrorContains(t, err, says)
			require.Empty(t, answer)
		}
	}
}
