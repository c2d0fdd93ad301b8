package endtoend

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/kafkaproxy"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// TestBrokerOutageUnderLoadIsSurvived proves contract 7.1 and 7.8.
func TestBrokerOutageUnderLoadIsSurvived(t *testing.T) {
	t.Parallel()
	kafka := disturbedKafka(t)
	s := newStreamOn(newRig(t), kafka.Admin, kafka.Brokers())
	first, second := s.worker(), s.observed()
	for _, outage := range []struct {
		name       string
		begin, end func() error
		lasts      time.Duration
	}{
		{"broker stopped", kafka.Stop, kafka.Start, 6 * time.Second},
		{"broker killed", kafka.Kill, kafka.Start, 2 * time.Second},
		{"broker frozen", kafka.Freeze, kafka.Thaw, 6 * time.Second},
	} {
		s.underKafkaLoad(s.feed, func() {
			s.consumes(first)
			s.await("both are members", second.consumes)
			second.forget()
			require.NoError(t, outage.begin())
			pause(t.Context(), outage.lasts)
			require.NoError(t, outage.end())
			s.worksOn()
			second.quiet(t, outage.name)
		})
		s.finish()
		require.True(t, first.Running(), "no worker gave up")
	}
}

// TestCoordinatorAndLeadersMoveBetweenBrokersUnderLoad proves contract 7.1 and 7.8: whichever
// broker fails, in whatever way, the other then leads all partitions and coordinates the group.
func TestCoordinatorAndLeadersMoveBetweenBrokersUnderLoad(t *testing.T) {
	t.Parallel()
	var proxies []*kafkaproxy.Proxy
	t.Cleanup(func() {
		for _, proxy := range proxies {
			proxy.Close()
		}
	})
	cluster, err := servers.StartCluster(servers.ClusterOptions{Through: func(broker string) (string, error) {
		proxy, err := kafkaproxy.Start(broker)
		if err != nil {
			return "", err
		}
		proxies = append(proxies, proxy)
		return proxy.Address(), nil
	}})
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	s := newStreamOn(newRig(t), cluster.Admin, cluster.Brokers())
	s.settings.SessionTimeout = 2 * time.Second
	coordinator := func() int {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		id, err := cluster.Coordinator(ctx, s.settings.Group)
		if err != nil {
			return 0 // none at the moment
		}
		return id
	}
	thaw := func(broker *servers.Kafka) error {
		return errors.Join(broker.Thaw(), cluster.AwaitInSync(t.Context()))
	}
	first, second := s.worker(), s.worker()
	s.underKafkaLoad(s.feed, func() {
		s.consumes(first)
		s.consumes(second)
		for _, outage := range []struct {
			name       string
			begin, end func(*servers.Kafka) error
		}{{"stopped", (*servers.Kafka).Stop, (*servers.Kafka).Start}, {"frozen", (*servers.Kafka).Freeze, thaw},
			{"killed", (*servers.Kafka).Kill, nil}} {
			require.NoError(t, cluster.AwaitInSync(t.Context()))
			gone := 0
			s.await("somebody coordinates", func() bool { gone = coordinator(); return gone != 0 })
			require.NoError(t, outage.begin(cluster.Broker(gone)))
			began := time.Now()
			s.await("the other coordinates", func() bool { return coordinator() == cluster.Other(gone) })
			s.await("the other leads", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				leaders, err := cluster.Leaders(ctx, s.settings.Topic)
				for _, leader := range leaders {
					if leader == gone {
						return false
					}
				}
				return err == nil && len(leaders) == partitions
			})
			t.Logf("broker %d %s: broker %d took over within %s", gone, outage.name, cluster.Other(gone), time.Since(began))
			s.commitsOn()
			if outage.end != nil {
				require.NoError(t, outage.end(cluster.Broker(gone)))
			}
		}
		for _, proxy := range proxies {
			proxy.CutAnswers(5, 300)
		}
		s.await("answers with records are cut in their middle", func() bool { return proxies[0].Cut()+proxies[1].Cut() >= 5 })
	})
	s.finish()
	require.True(t, first.Running() && second.Running(), "no worker gave up")
}
