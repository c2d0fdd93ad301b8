package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/integration/servers"
)

// documented are the rights that the store's documentation names.
var documented = []string{"+set", "+get", "+pexpire", "+del", "+evalsha", "+eval"}

const user = "inbox"

// grant creates the user with only these rights, on the keys of the default prefix only.
func grant(t *testing.T, server *redis.Client, password string, rights ...string) {
	t.Helper()
	command := []any{"ACL", "SETUSER", user, "reset", "on", ">" + password, "~inbox:*"}
	for _, right := range rights {
		command = append(command, right)
	}
	require.NoError(t, server.Do(t.Context(), command...).Err())
}

// everything uses all functions of a store, except waiting.
func everything(t *testing.T, store *redisstore.Store) {
	t.Helper()
	refused := errors.New("the card was refused")
	_, err := store.Run(t.Context(), payment, func(context.Context) error { return refused })
	require.Same(t, refused, err)
	handled(t, store)
	skipped(t, store)
	is, err := store.Processed(t.Context(), payment.Key)
	require.NoError(t, err)
	require.True(t, is)
}

func TestDocumentedRightsSuffice(t *testing.T) {
	for name, c := range map[string]struct {
		database int
		more     []string
	}{
		"in database 0":       {},
		"in another database": {2, []string{"+select"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, password := start(t, servers.RedisOptions{}), rand.Text()
			admin := newClient(t, server)
			grant(t, admin, password, append(c.more, documented...)...)
			everything(t, newRestricted(t, server, password, c.database))
			requireNothingElseWanted(t, admin)
		})
	}
	t.Run("in a cluster", func(t *testing.T) {
		t.Parallel()
		admin, password := newCluster(t, 2), rand.Text()
		var nodes []*redis.Client
		for _, address := range admin.Options().Addrs {
			node := redis.NewClient(&redis.Options{Addr: address})
			t.Cleanup(func() { require.NoError(t, node.Close()) })
			nodes = append(nodes, node)
			grant(t, node, password, append([]string{"+cluster|slots", "+command"}, documented...)...)
		}
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: admin.Options().Addrs, Username: user,
			Password: password, ContextTimeoutEnabled: true})
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		store, err := redisstore.New(client)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		everything(t, store)
		for _, node := range nodes {
			requireNothingElseWanted(t, node)
		}
	})
}

// requireNothingElseWanted fails if the server refused anything except one INFO and what clients
// send when they connect. A refused command could otherwise be repeated with each message.
func requireNothingElseWanted(t *testing.T, server *redis.Client) {
	t.Helper()
	refusals, err := server.ACLLog(t.Context(), 100).Result()
	require.NoError(t, err)
	for _, refused := range refusals {
		if !strings.HasPrefix(refused.Object, "client") {
			require.Equal(t, []any{"info", int64(1)}, []any{refused.Object, refused.Count})
		}
	}
}

func TestUserWithoutScriptRightsRunsNoBody(t *testing.T) {
	t.Parallel()
	server, password := start(t, servers.RedisOptions{}), rand.Text()
	grant(t, newClient(t, server), password, "+@all", "-@scripting")
	_, err := newRestricted(t, server, password, 0).Run(t.Context(), payment,
		func(context.Context) error { panic("called") })
	require.ErrorContains(t, err, "try a script: NOPERM")
}

// newRestricted returns a store of that user.
func newRestricted(t *testing.T, server *servers.Redis, password string, database int) *redisstore.Store {
	t.Helper()
	options, err := redis.ParseURL(server.URL())
	require.NoError(t, err)
	options.Username, options.Password, options.DB, options.ContextTimeoutEnabled = user, password, database, true
	client := redis.NewClient(options)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	store, err := redisstore.New(client)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}
