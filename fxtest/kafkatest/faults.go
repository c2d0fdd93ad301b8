package kafkatest

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Fault is a failure requested by FailNext.
type Fault struct{ handle *kfake.FaultHandle }

// Hits returns how many requests the fault has answered.
func (f *Fault) Hits() int { return f.handle.Hits() }

// Remove removes the fault.
func (f *Fault) Remove() { f.handle.Remove() }

// FailNext answers the next n requests of that kind with Kafka's error code, for example 22 for ILLEGAL_GENERATION,
// without acting on them. A negative n means until the fault is removed. An unknown code is answered as -1.
func (k *Kafka) FailNext(request kmsg.Key, code int16, n int) *Fault {
	known := kerr.TypedErrorForCode(code)
	if known == nil {
		known = kerr.UnknownServerError
	}
	return &Fault{k.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{request}, Err: known, Count: n})}
}

// Observe calls seen for each request of that kind until the Kafka is closed. The request is then answered as usual.
// seen must return quickly and must not call the Kafka.
func (k *Kafka) Observe(request kmsg.Key, seen func()) {
	k.cluster.ControlKey(int16(request), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.cluster.KeepControl()
		seen()
		return nil, nil, false
	})
}

// LoseAnswers breaks the connection of the next n requests of that kind instead of answering. The broker does not act
// on the requests.
func (k *Kafka) LoseAnswers(request kmsg.Key, n int) {
	for range n {
		k.cluster.ControlKey(int16(request), func(kmsg.Request) (kmsg.Response, error, bool) {
			return nil, fmt.Errorf("answer lost on purpose"), true
		})
	}
}
