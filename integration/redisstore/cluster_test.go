package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/idempotent/idempotenttest"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/integration/servers"
)

const slots = 16384

func TestConformanceOnACluster(t *testing.T) {
	client := newCluster(t, 2)
	cases := 0
	idempotenttest.Run(t, func(t *testing.T) idempotenttest.Fixture {
		cases++
		store, err := redisstore.New(client, func(o *redisstore.Options) {
			o.KeyPrefix = fmt.Sprintf("case%d", cases)
			o.WaitTimeout = patience
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		return idempotenttest.Fixture{Store: store, Forgets: true, Waits: 10 * time.Second}
	})
	require.NoError(t, client.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		n, err := node.DBSize(ctx).Result()
		if err == nil && n < 10 {
			err = fmt.Errorf("the node %s has %d keys: they do not spread", node.Options().Addr, n)
		}
		return err
	}))
}

// newCluster starts several masters that share the slots.
func newCluster(t *testing.T, n int) *redis.ClusterClient {
	t.Helper()
	var addresses []string
	var buses []int
	for i := range n {
		server := start(t, servers.RedisOptions{Cluster: true})
		node := newClient(t, server)
		require.NoError(t, node.ClusterAddSlotsRange(t.Context(), i*slots/n, (i+1)*slots/n-1).Err())
		for i, known := range addresses {
			host, port, _ := strings.Cut(known, ":")
			require.NoError(t, node.Do(t.Context(), "cluster", "meet", host, port, buses[i]).Err())
		}
		addresses, buses = append(addresses, node.Options().Addr), append(buses, server.BusPort())
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses, ContextTimeoutEnabled: true})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	require.Eventually(t, func() bool {
		for _, address := range addresses {
			node := redis.NewClient(&redis.Options{Addr: address})
			info, err := node.ClusterInfo(t.Context()).Result()
			_ = node.Close()
			if err != nil || !strings.Contains(info, "cluster_state:ok") ||
				!strings.Contains(info, fmt.Sprintf("cluster_size:%d", n)) {
				return false
			}
		}
		return true
	}, patience, 20*time.Millisecond)
	return client
}
