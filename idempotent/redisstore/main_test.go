package redisstore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// otherEnv makes this test binary act as another process that handles one message.
const otherEnv = "INBOX_TEST_REDISSTORE_OTHER"

// patience is how long tests wait for what must happen.
const patience = testenv.Patience

func TestMain(m *testing.M) {
	if order := os.Getenv(otherEnv); order != "" {
		handleElsewhere(order)
		return
	}
	goleak.VerifyTestMain(m)
}

// rig is a test's own part of the server.
type rig struct {
	url, prefix string
	client      *redis.Client
}

func newRig(t *testing.T) rig {
	t.Helper()
	url, prefix := testenv.Redis(t)
	client := redis.NewClient(parse(t, url))
	t.Cleanup(func() {
		// Not t.Context(), which has ended when cleanups run.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		keys := client.Scan(ctx, 0, prefix+":*", 10_000).Iterator()
		for keys.Next(ctx) {
			require.NoError(t, client.Del(ctx, keys.Val()).Err())
		}
		require.NoError(t, keys.Err())
		require.NoError(t, client.Close())
	})
	return rig{url, prefix, client}
}

// store returns one more store of the test, as another process would have.
func (r rig) store(t *testing.T, opts ...func(*redisstore.Options)) *redisstore.Store {
	t.Helper()
	return r.storeOn(t, r.client, opts...)
}

func (r rig) storeOn(t *testing.T, client redis.UniversalClient, opts ...func(*redisstore.Options)) *redisstore.Store {
	t.Helper()
	store, err := redisstore.New(client, append([]func(*redisstore.Options){func(o *redisstore.Options) {
		o.KeyPrefix = r.prefix
	}}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// another returns a separate client, for hooks.
func (r rig) another(t *testing.T) *redis.Client {
	t.Helper()
	client := redis.NewClient(parse(t, r.url))
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// parse returns options for one client: two must not share them.
func parse(t *testing.T, url string) *redis.Options {
	t.Helper()
	options, err := redis.ParseURL(url)
	require.NoError(t, err)
	options.ContextTimeoutEnabled = true
	return options
}

var payment = idempotent.Key{MessageID: "m1", HandlerKey: "billing"}

// key returns the payment's key as documented.
func (r rig) key() string { return r.prefix + ":{m1}:billing" }

func (r rig) value(t *testing.T) string {
	t.Helper()
	value, err := r.client.Get(t.Context(), r.key()).Result()
	if errors.Is(err, redis.Nil) {
		return ""
	}
	require.NoError(t, err)
	return value
}

func run(key idempotent.Key) idempotent.Run {
	return idempotent.Run{Key: key, MessageType: "payment.made", Retention: time.Hour}
}

func succeed(context.Context) error { return nil }

// handled checks that the payment is handled now.
func handled(t *testing.T, store idempotent.Store) {
	t.Helper()
	calls := 0
	duplicate, err := store.Run(t.Context(), run(payment), func(context.Context) error { calls++; return nil })
	require.NoError(t, err)
	require.False(t, duplicate)
	require.Equal(t, 1, calls)
}

// warm makes a new store handle another key. Before its first body a store tries a script, which
// renews that claim and so hides the lease that it was made with.
func warm(t *testing.T, store idempotent.Store) {
	t.Helper()
	duplicate, err := store.Run(t.Context(), run(warmUp()), succeed)
	require.NoError(t, err)
	require.False(t, duplicate)
}

// warmUp returns a key that no other process and no other store uses.
func warmUp() idempotent.Key {
	return idempotent.Key{MessageID: fmt.Sprintf("warm-up-%d-%d", os.Getpid(), time.Now().UnixNano()),
		HandlerKey: "warming"}
}

func processed(t *testing.T, store idempotent.Store) bool {
	t.Helper()
	is, err := store.Processed(t.Context(), payment)
	require.NoError(t, err)
	return is
}

// order says what another process must handle.
type order struct {
	URL, Prefix string
	Lease       time.Duration
	Run         idempotent.Run
}

// elsewhere is another process that is in its body.
type elsewhere struct {
	command *exec.Cmd
	input   io.WriteCloser
	output  *bufio.Reader
}

// startElsewhere returns when the body of the other process has been called. That body returns nil
// as soon as it gets input.
func startElsewhere(t *testing.T, o order) elsewhere {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), otherEnv+"="+string(text))
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	require.NoError(t, err)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	e := elsewhere{command, input, bufio.NewReader(output)}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it has ended if the test succeeded
		_ = command.Wait()
	})
	require.Equal(t, "in the body\n", e.line(t))
	return e
}

func (e elsewhere) line(t *testing.T) string {
	t.Helper()
	line, err := e.output.ReadString('\n')
	require.NoError(t, err)
	return line
}

// handleElsewhere runs as the other process.
func handleElsewhere(text string) {
	var given order
	if err := json.Unmarshal([]byte(text), &given); err != nil {
		panic(err)
	}
	store, err := redisstore.Open(given.URL, func(o *redisstore.Options) {
		o.KeyPrefix, o.Lease = given.Prefix, given.Lease
	})
	if err != nil {
		panic(err)
	}
	if _, err := store.Run(context.Background(), idempotent.Run{Key: warmUp(), Retention: time.Minute},
		succeed); err != nil {
		panic(err)
	}
	duplicate, err := store.Run(context.Background(), given.Run, func(context.Context) error {
		fmt.Println("in the body")
		_, _ = os.Stdin.Read(make([]byte, 1)) // the end of the input counts as well
		return nil
	})
	fmt.Println("duplicate", duplicate, "lost", errors.Is(err, idempotent.ErrLost), "nil", err == nil)
}
