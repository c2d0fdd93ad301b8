package schemaregistry_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/schemaregistry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answer may answer a request instead of the registry, and reports whether it did.
type answer = func(w http.ResponseWriter, r *http.Request) bool

// rig is a registry of the test's own in this process, and a Registry that asks it.
type rig struct {
	*schemaregistry.Registry
	fake     *srfake.Registry
	client   *sr.Client
	clock    *fxtest.Clock
	requests atomic.Int64
	instead  atomic.Pointer[answer]
}

func newRig(t testing.TB, configure ...func(*schemaregistry.Options)) *rig {
	t.Helper()
	g := &rig{fake: srfake.New(), clock: fxtest.NewClock(time.Now())}
	g.fake.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		g.requests.Add(1)
		instead := g.instead.Load()
		return instead != nil && (*instead)(w, r)
	})
	transport := &http.Transport{}
	t.Cleanup(func() {
		g.fake.Close()
		transport.CloseIdleConnections()
	})
	var err error
	g.client, err = sr.NewClient(sr.URLs(g.fake.URL()), sr.HTTPClient(&http.Client{Transport: transport}))
	require.NoError(t, err)
	g.Registry, err = schemaregistry.New(g.client, append([]func(*schemaregistry.Options){
		func(o *schemaregistry.Options) { o.Clock = g.clock }}, configure...)...)
	require.NoError(t, err)
	return g
}

// answers makes the registry answer in another way until it recovers.
func (g *rig) answers(by answer) { g.instead.Store(&by) }

func (g *rig) recovers() { g.instead.Store(nil) }

// hangUp ends the connection without a response.
func hangUp(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }

// respond answers with a status and a body.
func respond(status int, body string) answer {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
		return true
	}
}

// register stores a schema under a subject and returns its ID.
func (g *rig) register(t testing.TB, subject string, s sr.Schema) int {
	t.Helper()
	id, _, err := g.fake.RegisterSchema(subject, s)
	require.NoError(t, err)
	return id
}

// framed is a body in the wire format.
func framed(id int, rest string) []byte {
	return append([]byte{0, byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}, rest...)
}

// codec is what both codecs are.
type codec[T any] interface {
	handler.Codec[T]
	handler.Encoder[T]
}

func encode[T any](t testing.TB, c codec[T], payload T) []byte {
	t.Helper()
	content, contentType, err := c.Encode(payload)
	require.NoError(t, err)
	require.Empty(t, contentType)
	return content
}

// requireLasting checks that a codec's error poisons at once.
func requireLasting(t testing.TB, err error) {
	t.Helper()
	require.Error(t, err)
	require.True(t, handler.Undecodable(&handler.DecodeError{Err: err}), "%v", err)
}

// requireSnoozed checks that a codec's error charges no attempt.
func requireSnoozed(t testing.TB, err error) {
	t.Helper()
	snoozed := (*handler.SnoozeError)(nil)
	require.ErrorAs(t, err, &snoozed)
	require.Positive(t, snoozed.Delay)
}
