package kafka

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// watched returns a started consumer with a clock that stands still, and its log.
func watched(
	t *testing.T, cfg kafkaconsumer.Config, acceptor kafkaconsumer.Acceptor,
) (*kafkaconsumer.Consumer, *fxtest.Clock, *observer.ObservedLogs) {
	t.Helper()
	clock := fxtest.NewClock(inboxtest.Noon)
	core, logs := observer.New(zap.InfoLevel)
	c, err := kafkaconsumer.New("orders.events", cfg, acceptor, zap.New(core), clock)
	require.NoError(t, err)
	t.Cleanup(func() { stop(t, c) })
	require.NoError(t, c.Start(t.Context()))
	return c, clock, logs
}

func first(c *kafkaconsumer.Consumer) kafkaconsumer.PartitionHealth {
	for _, p := range c.Health().Partitions {
		return p
	}
	return kafkaconsumer.PartitionHealth{Lag: -1}
}

// TestLagStaysKnownWithoutFetching proves contract 7.8: the lag is known even where
// nothing is fetched, whatever the reason.
func TestLagStaysKnownWithoutFetching(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		state kafkaconsumer.PartitionState
		block func(t *testing.T, l *ledger)
	}{
		"halted": {"halted", func(_ *testing.T, l *ledger) {
			l.halt = func(r envelope.Record) bool { return r.Offset == 0 }
		}},
		"accepting fails": {"accepting", func(_ *testing.T, l *ledger) {
			l.before = func(context.Context, []envelope.Received) error { return errors.New("database gone") }
		}},
		"an accept hangs": {"accepting", func(t *testing.T, l *ledger) {
			l.before = func(ctx context.Context, _ []envelope.Received) error {
				select {
				case <-ctx.Done():
				case <-t.Context().Done():
				}
				return ctx.Err()
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			test.block(t, r.ledger)
			r.produce(3, 0)
			c := r.start(func(c *kafkaconsumer.Config) {
				c.BufferBytes, c.BatchRecords, c.FetchMaxBytes = 1, 1, 1
				c.DrainTimeout = 100 * time.Millisecond
			})
			eventually(t, "it is known", func() bool { return first(c).Lag == 3 && first(c).State == test.state })
			r.produce(5, 0)
			eventually(t, "what came meanwhile is counted", func() bool { return first(c).Lag == 8 })
			p := first(c)
			require.Zero(t, p.Accepted)
			require.NotZero(t, p.BehindSince)
			require.NoError(t, p.WatermarkErr)
			lag, since := c.Health().Lag()
			require.EqualValues(t, 8, lag)
			require.Equal(t, p.BehindSince, since)
		})
	}
}

// Contract 7.8: what a broker that is away has received meanwhile is not nothing.
func TestLagIsUnknownWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(3, 0)
	c := r.start()
	lag := func() int64 { lag, _ := c.Health().Lag(); return lag }
	eventually(t, "everything is accepted", func() bool { return r.ledger.accepted(topic) == 3 && lag() == 0 })
	r.kafka.Stop()
	eventually(t, "the lag is unknown", func() bool { return lag() == -1 })
}

// TestStallAndItsEndAreLoggedOnce proves contract 7.8: a stall is logged once, and its end once. Its
// time comes from the injected clock.
func TestStallAndItsEndAreLoggedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	release := make(chan struct{})
	r.ledger.before = func(ctx context.Context, received []envelope.Received) error {
		if received[0].Record.Partition == 1 {
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	}
	cfg := config(r.kafka.Brokers(), topic)
	r.produce(3, 0, 1)
	c, clock, logs := watched(t, cfg, r.ledger)
	eventually(t, "one partition goes on", func() bool {
		return r.ledger.accepted(topic) == 3 && len(c.Health().Partitions) == 2
	})
	eventually(t, "the other is being accepted", func() bool {
		p := c.Health().Partitions[1]
		return p.Lag == 3 && p.State == "accepting"
	})
	clock.Advance(2*time.Minute - time.Second)
	require.NoError(t, c.Health().Err())
	clock.Advance(time.Second)
	require.EqualError(t, c.Health().Err(), "orders/1 makes no progress since "+inboxtest.Noon.Format(time.RFC3339)+
		": it is at offset 0, 3 behind, and accepting")
	said := func(what string) int { return logs.FilterMessageSnippet(what).Len() }
	eventually(t, "it is said", func() bool { return said("partition progress failing") == 1 })
	clock.Advance(time.Minute)
	r.produce(1, 0)
	eventually(t, "the other partition goes on", func() bool { return r.ledger.accepted(topic) == 4 })
	close(release)
	eventually(t, "it is said to be over", func() bool { return said("partition progress recovered") == 1 })
	require.NoError(t, c.Health().Err())
	require.Equal(t, 2, said("partition progress"), "once each")
	r.awaitAll()
}

// TestExplainedStallIsNotReported checks that a condition with a report of its own is
// not reported as a stall as well, and that a normal state is not reported at all.
func TestExplainedStallIsNotReported(t *testing.T) {
	t.Parallel()
	settled := func(t *testing.T, c *kafkaconsumer.Consumer, clock *fxtest.Clock, logs *observer.ObservedLogs) string {
		t.Helper()
		clock.Advance(time.Hour)
		require.Never(t, func() bool { // for a few checks
			return strings.Contains(errText(c), "makes no progress") || logs.FilterMessageSnippet("partition progress").Len() > 0
		}, 500*time.Millisecond, 20*time.Millisecond)
		return errText(c)
	}
	t.Run("halted", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 1)
		r.ledger.halt = func(r envelope.Record) bool { return r.Offset == 1 }
		r.produce(3, 0)
		c, clock, logs := watched(t, config(r.kafka.Brokers(), topic), r.ledger)
		eventually(t, "halted", func() bool { return len(c.Health().Halted()) == 1 })
		require.Contains(t, settled(t, c, clock, logs), "orders/0 is halted before offset 1 since "+
			inboxtest.Noon.Format(time.RFC3339)+": bad record at 1")
	})
	t.Run("accepting fails", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 1)
		r.ledger.before = func(context.Context, []envelope.Received) error { return errors.New("database gone") }
		r.produce(3, 0)
		c, clock, logs := watched(t, config(r.kafka.Brokers(), topic), r.ledger)
		eventually(t, "it fails", func() bool { return c.Health().AcceptErr != nil })
		require.Equal(t, "accepting fails since "+inboxtest.Noon.Format(time.RFC3339)+": database gone",
			settled(t, c, clock, logs))
		eventually(t, "a reminder", func() bool { return logs.FilterMessageSnippet("accept still failing").Len() == 1 })
	})
	t.Run("all is read", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 1)
		r.produce(3, 0)
		c, clock, logs := watched(t, config(r.kafka.Brokers(), topic), r.ledger)
		r.awaitAll()
		require.Empty(t, settled(t, c, clock, logs))
		r.produce(3, 0)
		r.awaitAll()
		require.Empty(t, errText(c), "nor when there is something again after an hour")
	})
	t.Run("a transaction is open", func(t *testing.T) {
		t.Parallel()
		onEachBroker(t, func(t *testing.T, b *bench) {
			b.createTopic(1, nil)
			producer := b.newClient(kgo.TransactionalID(b.topic))
			require.NoError(t, producer.BeginTransaction())
			b.produce(producer, &kgo.Record{Value: []byte("x")})
			b.produce(b.client, &kgo.Record{Value: []byte("behind it")})
			cfg := config(b.brokers, b.topic)
			cfg.GroupID, cfg.SessionTimeout, cfg.RequestTimeout = b.group, 6*time.Second, 5*time.Second
			c, clock, logs := watched(t, cfg, b.ledger)
			eventually(t, "its lag is known", func() bool { return first(c).Lag == 2 })
			require.Empty(t, settled(t, c, clock, logs))
			require.EqualValues(t, 2, first(c).Lag)
			require.NoError(t, producer.EndTransaction(t.Context(), kgo.TryCommit))
			eventually(t, "it ends", func() bool { return b.ledger.accepted(b.topic) == 2 && first(c).Lag == 0 })
		})
	})
}

func errText(c *kafkaconsumer.Consumer) string {
	if err := c.Health().Err(); err != nil {
		return err.Error()
	}
	return ""
}

// TestPartitionCatchesUpOnlyOnceItsLeaderKnowsTheEnd proves contract 6.5. Right after an
// election a leader answers fetches but may know less than was committed. Kafka then refuses to
// list offsets.
func TestPartitionCatchesUpOnlyOnceItsLeaderKnowsTheEnd(t *testing.T) {
	t.Parallel()
	const offsetNotAvailable = 78
	r := newRig(t, 1)
	r.produce(3, 0)
	fault := r.kafka.FailNext(kmsg.ListOffsets, offsetNotAvailable, -1)
	// As the group has an offset, only the watermark is asked for.
	begin := kadm.Offsets{}
	begin.AddOffset(topic, 0, 0, -1)
	client, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.Brokers()...))
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, kadm.NewClient(client).CommitAllOffsets(t.Context(), group, begin))
	c := r.start()
	r.awaitAll()
	eventually(t, "it was asked", func() bool { return fault.Hits() >= 2 && first(c).WatermarkErr != nil })
	require.False(t, c.Health().CaughtUp())
	require.NoError(t, c.Health().Err(), "it is no trouble of consuming")
	fault.Remove()
	eventually(t, "it is known", func() bool { return c.Health().CaughtUp() })
	eventually(t, "and asked for no more", func() bool { return first(c).WatermarkErr == nil })
}

func TestMemberWithoutPartitionsReportsItsGroup(t *testing.T) {
	t.Parallel()
	t.Run("more members than partitions", func(t *testing.T) {
		t.Parallel()
		onEachBroker(t, func(t *testing.T, b *bench) {
			b.createTopic(1, nil)
			members := []*kafkaconsumer.Consumer{b.start(), b.start()}
			eventually(t, "one is idle", func() bool {
				for _, c := range members {
					if h := c.Health(); h.Idle != nil && *h.Idle == (kafkaconsumer.Idle{Members: 2, Partitions: 1}) &&
						len(h.Partitions) == 0 {
						return h.Err() == nil
					}
				}
				return false
			})
		})
	})
	t.Run("more partitions than members", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 2, kafkatest.Topic("second", 2))
		cfg := config(r.kafka.Brokers(), topic, "second")
		var logs []*observer.ObservedLogs
		var members []*kafkaconsumer.Consumer
		for range 3 {
			c, _, log := watched(t, cfg, r.ledger)
			members, logs = append(members, c), append(logs, log)
		}
		eventually(t, "it is said by the one that has none", func() bool {
			for i, c := range members {
				idle := c.Health().Idle
				if idle != nil && *idle == (kafkaconsumer.Idle{Members: 3, Partitions: 4}) &&
					logs[i].FilterMessageSnippet("member has no partitions although").Len() == 1 {
					return c.Health().Err() == nil // all are consumed
				}
			}
			return false
		})
	})
}

func TestUnassignedPartitionIsLogged(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b *bench) {
		b.createTopic(1, nil)
		leader := b.start(func(c *kafkaconsumer.Config) { c.WatchInterval = time.Hour }) // it does not find new partitions
		eventually(t, "it leads", func() bool { return len(leader.Health().Partitions) == 1 })
		others := []*kafkaconsumer.Consumer{b.start(), b.start()}
		var idle *kafkaconsumer.Consumer // two of the three are idle
		eventually(t, "one of the others is idle", func() bool {
			for _, c := range others {
				if i := c.Health().Idle; i != nil && i.Members == 3 {
					idle = c
				}
			}
			return idle != nil
		})
		require.NoError(t, idle.Health().Err())
		_, err := b.admin.UpdatePartitions(t.Context(), 2, b.topic)
		require.NoError(t, err)
		eventually(t, "it is said", func() bool {
			return strings.Contains(errText(idle), "1 of 2 partitions are assigned to none of its 3 members")
		})
	})
}

// TestSlowJoinIsLogged checks that a group without a generation is reported after some
// time, whatever the reason. Here the coordinator keeps rebalancing.
func TestSlowJoinIsLogged(t *testing.T) {
	t.Parallel()
	const rebalanceInProgress = 27
	r := newRig(t, 1)
	fault := r.kafka.FailNext(kmsg.JoinGroup, rebalanceInProgress, -1)
	c, clock, _ := watched(t, config(r.kafka.Brokers(), topic), r.ledger)
	eventually(t, "it tries", func() bool { return fault.Hits() >= 2 && c.State() == kafkaconsumer.StateJoining })
	clock.Advance(2*time.Minute - time.Second)
	require.NoError(t, c.Health().Err(), "the ordinary course of joining")
	clock.Advance(time.Second)
	require.ErrorContains(t, c.Health().Err(), `group "fulfilment": no member since `+inboxtest.Noon.Format(time.RFC3339)+
		": joining since")
	fault.Remove()
	eventually(t, "it joins", func() bool { return c.Health().Err() == nil && c.State() == kafkaconsumer.StateRunning })
}

// TestEndOffsetsOfManyPartitionsAreKnown checks a number of partitions that takes several requests.
func TestEndOffsetsOfManyPartitionsAreKnown(t *testing.T) {
	t.Parallel()
	const partitions = 50
	r := newRig(t, partitions)
	r.ledger.halt = func(r envelope.Record) bool { return r.Offset == 1 }
	for p := range partitions {
		r.produce(2, p)
	}
	c := r.start()
	eventually(t, "all are halted", func() bool { return len(c.Health().Halted()) == partitions })
	for p := range partitions {
		r.produce(3, p)
	}
	eventually(t, "what came meanwhile is counted", func() bool {
		lag, _ := c.Health().Lag()
		return lag == 4*partitions
	})
	for _, p := range c.Health().Partitions {
		require.NoError(t, p.WatermarkErr)
		require.EqualValues(t, 4, p.Lag)
	}
}
