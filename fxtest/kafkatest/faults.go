package kafkatest

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Fault is a failure that was ordered.
type Fault struct{ handle *kfake.FaultHandle }

// Hits counts the requests it has answered.
func (f *Fault) Hits() int { return f.handle.Hits() }

// Remove ends it.
func (f *Fault) Remove() { f.handle.Remove() }

// FailNext answers the next n requests of that kind with Kafka's error code,
// for example 22 for ILLEGAL_GENERATION, without acting on them; n < 0 means
// until the fault is removed. An unknown code is answered as -1.
func (k *Kafka) FailNext(request kmsg.Key, code int16, n int) *Fault {
	known := kerr.TypedErrorForCode(code)
	if known == nil {
		known = kerr.UnknownServerError
	}
	return &Fault{k.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{request}, Err: known, Count: n})}
}

// Observe calls seen for each request of that kind, which is then answered as
// usual, until the Kafka is closed. seen must be quick and must not call the
// Kafka.
func (k *Kafka) Observe(request kmsg.Key, seen func()) {
	k.cluster.ControlKey(int16(request), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.cluster.KeepControl()
		seen()
		return nil, nil, false
	})
}

// LoseAnswers breaks the connection of the next n requests of that kind
// instead of answering; they are not acted on.
func (k *Kafka) LoseAnswers(request kmsg.Key, n int) {
	for range n {
		k.cluster.ControlKey(int16(request), func(kmsg.Request) (kmsg.Response, error, bool) {
			return nil, fmt.Errorf("answer lost on purpose"), true
		})
	}
}
