package kafkaconsumer

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"github.com/segmentio/kafka-go/sasl"
)

// mostIterations bounds what a broker may make a client compute before it logs in, to about a
// second. Kafka stores at most 16,384 iterations.
const mostIterations = 1 << 20

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
		if n, err := strconv.Atoi(string(count)); err != nil || n > mostIterations {
			const what = "authenticate: the broker asks for %.20q iterations of SCRAM, of %d at most"
			return false, nil, fmt.Errorf(what, count, mostIterations)
		}
	}
	return s.StateMachine.Next(ctx, challenge)
}
