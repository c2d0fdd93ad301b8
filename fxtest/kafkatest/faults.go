package kafkatest

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// API is a kind of request. Its value is Kafka's API key.
type API int16

// The requests that tests most often make fail.
const (
	ProduceAPI         API = 0
	FetchAPI           API = 1
	ListOffsetsAPI     API = 2
	MetadataAPI        API = 3
	OffsetCommitAPI    API = 8
	OffsetFetchAPI     API = 9
	FindCoordinatorAPI API = 10
	JoinGroupAPI       API = 11
	HeartbeatAPI       API = 12
	LeaveGroupAPI      API = 13
	SyncGroupAPI       API = 14
)

// Fault is a failure requested by FailNext.
type Fault struct{ handle *kfake.FaultHandle }

// Hits returns how many requests the fault has answered.
func (f *Fault) Hits() int { return f.handle.Hits() }

// Remove removes the fault.
func (f *Fault) Remove() { f.handle.Remove() }

// FailNext answers the next n requests of that kind with Kafka's error code, for example 22 for
// ILLEGAL_GENERATION, without acting on them. A negative n means until the fault is removed. An
// unknown code is answered as -1.
func (k *Kafka) FailNext(api API, code int16, n int) *Fault {
	known := kerr.TypedErrorForCode(code)
	if known == nil {
		known = kerr.UnknownServerError
	}
	return &Fault{k.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Key(api)}, Err: known, Count: n})}
}

// Observe calls seen for each request of that kind until the Kafka is closed. The request is then
// answered as usual. seen must return quickly and must not call the Kafka.
func (k *Kafka) Observe(api API, seen func()) {
	k.cluster.ControlKey(int16(api), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.cluster.KeepControl()
		seen()
		return nil, nil, false
	})
}

// LoseAnswers breaks the connection of the next n requests of that kind instead of answering. The
// broker does not act on the requests.
func (k *Kafka) LoseAnswers(api API, n int) {
	for range n {
		k.cluster.ControlKey(int16(api), func(kmsg.Request) (kmsg.Response, error, bool) {
			return nil, fmt.Errorf("answer lost on purpose"), true
		})
	}
}
