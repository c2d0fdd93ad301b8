package broker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/integration/simulation/broker"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	topic = "orders"
	group = "fulfilment"
)

// rig is a cluster of two brokers with one topic, and what its consumers have accepted.
type rig struct {
	t *testing.T
	b *broker.Broker

	mu       sync.Mutex
	next     map[broker.Partition]int64 // all records of the log before it are accepted
	accepted map[string]int             // by value
	gaps     []envelope.Gap
	last     map[string]int64 // the last commit of a generation

	processes []process
}

// bubble runs a test in virtual time. Goroutines that are left at its end fail it.
func bubble(t *testing.T, partitions int, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, err := broker.New(2)
		require.NoError(t, err)
		r := &rig{t: t, b: b, next: map[broker.Partition]int64{}, accepted: map[string]int{}, last: map[string]int64{}}
		b.OnCommit = r.judge
		require.NoError(t, b.CreateTopic(topic, partitions))
		defer func() {
			for _, p := range r.processes { // that a failed test has left
				p.network.Kill()
				_ = p.Stop(context.Background())
			}
			b.Close()
		}()
		test(t, r)
	})
}

// judge checks that a commit passes nothing that is not accepted, and does not move back in a generation.
func (r *rig) judge(c broker.Commit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if accepted := r.next[broker.Partition{Topic: c.Topic, ID: c.Partition}]; c.Offset > accepted {
		r.t.Errorf("committed %+v, accepted is %d", c, accepted)
	}
	key := fmt.Sprint(c.Generation, c.TopicID, c.Partition)
	if c.Offset < r.last[key] {
		r.t.Errorf("committed %+v after %d", c, r.last[key])
	}
	r.last[key] = c.Offset
}

func (r *rig) AcceptRecords(_ context.Context, _ string, received []envelope.Received) ([]envelope.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range received {
		at := broker.Partition{Topic: one.Record.Topic, ID: one.Record.Partition}
		if one.Record.Offset > r.next[at] {
			r.t.Errorf("%v: accepted %d, expected was %d", at, one.Record.Offset, r.next[at])
		}
		r.next[at] = max(r.next[at], one.Record.Offset+1)
		r.accepted[string(one.Record.Value)]++
	}
	return make([]envelope.Result, len(received)), nil
}

func (r *rig) AcceptGap(_ context.Context, _ string, gap envelope.Gap) (envelope.Disposition, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gaps = append(r.gaps, gap)
	r.next[broker.Partition{Topic: gap.Topic, ID: gap.Partition}] = gap.To
	return envelope.Durable, nil
}

func (r *rig) PartitionRequests(context.Context, string) ([]models.PartitionRequest, error) {
	return nil, nil
}

func (r *rig) CarryOut(context.Context, models.PartitionRequest, *envelope.Received, *envelope.Gap) (
	envelope.Disposition, error,
) {
	return envelope.Halt, errors.ErrUnsupported
}

// process is a consumer with the network of its own process.
type process struct {
	*kafkaconsumer.Consumer
	network *broker.Client
}

// start starts a consumer with the default timeouts.
func (r *rig) start(link broker.Link) process {
	r.t.Helper()
	network := r.b.Client(link)
	c, err := kafkaconsumer.New("orders.events", kafkaconsumer.Config{
		Brokers: r.b.Addresses(), Topics: []string{topic}, GroupID: group, Dial: network.Dial,
		Decoder: envelope.DecoderConfig{Type: "order.placed", ID: envelope.KafkaCoordinates()},
	}, r, nil, nil)
	require.NoError(r.t, err)
	require.NoError(r.t, c.Start(r.t.Context()))
	p := process{c, network}
	r.processes = append(r.processes, p)
	return p
}

func (r *rig) stop(p process) {
	r.t.Helper()
	require.NoError(r.t, p.Stop(context.Background()))
}

// produce appends n records to each partition and returns how many there are then in all.
func (r *rig) produce(n int, partitions ...int) {
	r.t.Helper()
	for _, id := range partitions {
		to := broker.Partition{Topic: topic, ID: id}
		var records []broker.Record
		end := r.b.End(to)
		for i := range n {
			value := fmt.Appendf(nil, "%s %d/%d", time.Now(), id, end+int64(i)) // a topic created again begins at 0
			records = append(records, broker.Record{Value: value})
		}
		first, err := r.b.Produce(r.t.Context(), to, records...)
		require.NoError(r.t, err)
		require.Equal(r.t, end, first)
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// within waits in virtual time and returns how long that took.
func (r *rig) within(limit time.Duration, what string, done func() bool) time.Duration {
	r.t.Helper()
	began := time.Now()
	for ; !done(); pass(10 * time.Millisecond) {
		if time.Since(began) > limit {
			r.t.Fatalf("not within %s: %s", limit, what)
		}
	}
	return time.Since(began)
}

// committed reports whether everything in these partitions is committed.
func (r *rig) committed(partitions ...int) func() bool {
	return func() bool {
		committed := r.b.Committed(group)
		for _, id := range partitions {
			at := broker.Partition{Topic: topic, ID: id}
			if committed[at] != r.b.End(at) {
				return false
			}
		}
		return true
	}
}

func (r *rig) assigned(p process, n int) func() bool {
	return func() bool { return p.State() == kafkaconsumer.StateRunning && len(p.Health().Partitions) == n }
}

func TestConsumerReadsAndCommits(t *testing.T) {
	bubble(t, 3, func(t *testing.T, r *rig) {
		p := r.start(nil)
		r.produce(5, 0, 1, 2)
		r.within(5*time.Second, "all committed", r.committed(0, 1, 2))
		require.NoError(t, r.b.MoveLeader(broker.Partition{Topic: topic, ID: 1}))
		r.b.MoveCoordinators()
		r.produce(5, 0, 1, 2)
		r.within(20*time.Second, "all committed after leaders and coordinator have moved", r.committed(0, 1, 2))
		pass(10 * time.Minute)
		require.NoError(t, p.Health().Err())
		require.Len(t, r.accepted, 30)
		r.stop(p)
		require.Empty(t, r.b.Members(group), "it has left")
		commits := r.b.Commits()
		last := commits[len(commits)-1]
		require.Equal(t, last.Offset, r.b.Committed(group)[broker.Partition{Topic: topic, ID: last.Partition}])
		records, err := r.b.Records(t.Context(), broker.Partition{Topic: topic, ID: 1})
		require.NoError(t, err)
		require.Len(t, records, 10)
		require.EqualValues(t, 9, records[9].Offset)
	})
}

func TestPartitionsMoveBetweenMembers(t *testing.T) {
	bubble(t, 4, func(t *testing.T, r *rig) {
		one := r.start(nil)
		r.within(5*time.Second, "one has all", r.assigned(one, 4))
		r.produce(5, 0, 1, 2, 3)
		two := r.start(nil)
		r.within(10*time.Second, "both have two", func() bool { return r.assigned(one, 2)() && r.assigned(two, 2)() })
		r.produce(5, 0, 1, 2, 3)
		r.within(5*time.Second, "all committed", r.committed(0, 1, 2, 3))
		require.Len(t, r.b.Members(group), 2)

		require.NoError(t, r.b.Evict(t.Context(), group, one.Health().MemberID))
		r.produce(5, 0, 1, 2, 3)
		r.within(20*time.Second, "the evicted member is back", func() bool {
			return r.committed(0, 1, 2, 3)() && r.assigned(one, 2)() && r.assigned(two, 2)()
		})
		r.stop(one)
		r.within(10*time.Second, "the other has all", r.assigned(two, 4))
		r.stop(two)
	})
}

func TestPartitionsOfKilledProcessMoveAfterItsSession(t *testing.T) {
	bubble(t, 4, func(t *testing.T, r *rig) {
		one, two := r.start(nil), r.start(nil)
		r.within(20*time.Second, "both have two", func() bool { return r.assigned(one, 2)() && r.assigned(two, 2)() })
		one.network.Kill()
		r.produce(5, 0, 1, 2, 3)
		took := r.within(20*time.Second, "the other has all", r.assigned(two, 4))
		require.Greater(t, took, 8*time.Second, "not before the session timeout, less a heartbeat")
		r.within(5*time.Second, "all committed", r.committed(0, 1, 2, 3))
		_ = one.Stop(t.Context()) // to end its goroutines
		r.stop(two)
	})
}

// on returns a Link that calls act for the requests of one kind, while it is set.
type on struct {
	request string
	mu      sync.Mutex
	act     broker.Link
}

func (o *on) set(act broker.Link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.act = act
}

func (o *on) link(ctx context.Context, request string, do func() error) error {
	o.mu.Lock()
	act := o.act
	o.mu.Unlock()
	if act == nil || o.request != "" && o.request != request {
		return do()
	}
	return act(ctx, request, do)
}

var errLost = errors.New("the connection is lost")

func TestCommitThatLosesItsResponseIsRepeated(t *testing.T) {
	for name, stored := range map[string]int{"request": 1, "response": 2} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, r *rig) {
				commit := &on{request: "OffsetCommit"}
				p := r.start(commit.link)
				r.within(5*time.Second, "it has joined", r.assigned(p, 1))
				commit.set(func(_ context.Context, _ string, do func() error) error {
					commit.set(nil)
					if stored == 2 {
						require.NoError(t, do())
					}
					return errLost
				})
				r.produce(5, 0)
				r.within(5*time.Second, "all committed", r.committed(0))
				pass(time.Second)
				require.NoError(t, p.Health().Err())
				commits := r.b.Commits()
				require.EqualValues(t, 5, commits[0].Offset)
				require.Len(t, commits, stored)
				r.stop(p)
			})
		})
	}
}

func TestConsumerContinuesAfterRetentionGap(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		at := broker.Partition{Topic: topic}
		p := r.start(nil)
		r.produce(5, 0)
		r.within(5*time.Second, "all committed", r.committed(0))
		r.stop(p)
		r.produce(5, 0)
		require.NoError(t, r.b.DeleteRecords(at, 8))
		p = r.start(nil)
		r.within(20*time.Second, "all committed", r.committed(0))
		require.Len(t, r.gaps, 1)
		require.Equal(t, []int64{5, 8}, []int64{r.gaps[0].From, r.gaps[0].To})
		require.Len(t, r.accepted, 7)
		r.stop(p)
	})
}

func TestConsumerReadsRecreatedTopicFromItsStart(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		p := r.start(nil)
		r.produce(5, 0, 1)
		r.within(5*time.Second, "all committed", r.committed(0, 1))
		require.NoError(t, r.b.RecreateTopic(topic))
		r.produce(7, 0, 1)
		r.within(2*time.Minute, "the new logs are committed", r.committed(0, 1))
		require.Len(t, r.accepted, 24)
		require.NotEmpty(t, r.gaps)
		commits := r.b.Commits()
		require.NotEqual(t, commits[0].TopicID, commits[len(commits)-1].TopicID)
		r.stop(p)
	})
}

// TestSilentBrokersEndAtDeadlines covers a network that loses everything for two minutes, then new brokers' answers.
func TestSilentBrokersEndAtDeadlines(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		network := &on{}
		p := r.start(network.link)
		r.produce(5, 0, 1)
		r.within(5*time.Second, "all committed", r.committed(0, 1))
		network.set(func(context.Context, string, func() error) error { return broker.ErrSilent })
		r.produce(5, 0, 1)
		r.within(30*time.Second, "health names it", func() bool { return p.Health().Err() != nil })
		pass(2 * time.Minute)
		require.Empty(t, r.b.Members(group), "its session is over")
		network.set(nil)
		r.within(30*time.Second, "all committed", r.committed(0, 1))
		network.set(func(context.Context, string, func() error) error { return broker.ErrSilent })
		began := time.Now()
		r.stop(p)
		require.Less(t, time.Since(began), 30*time.Second)
	})
}

// faulty returns a Link that delays each request, and lets some of them fail before or after the broker has done them.
func faulty(draw func(n int) int) broker.Link {
	return func(ctx context.Context, _ string, do func() error) error {
		select {
		case <-time.After(time.Duration(draw(200)) * time.Millisecond):
		case <-ctx.Done():
		}
		switch draw(100) {
		case 0:
			return errLost
		case 1:
			return errors.Join(do(), errLost)
		case 2:
			return broker.ErrSilent
		case 3:
			return errors.Join(do(), broker.ErrSilent)
		}
		return do()
	}
}

func TestFaultsLoseNothing(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, 4, func(t *testing.T, r *rig) {
				var mu sync.Mutex
				source := rand.New(rand.NewPCG(seed, 0))
				draw := func(n int) int {
					mu.Lock()
					defer mu.Unlock()
					return source.IntN(n)
				}
				network := &on{}
				network.set(faulty(draw))
				processes := []process{r.start(network.link), r.start(network.link)}
				const rounds = 60
				for range rounds {
					r.produce(3, 0, 1, 2, 3)
					pass(time.Duration(draw(3000)) * time.Millisecond)
					i := draw(len(processes))
					switch draw(10) {
					case 0:
						require.NoError(t, r.b.MoveLeader(broker.Partition{Topic: topic, ID: draw(4)}))
					case 1:
						r.b.MoveCoordinators()
					case 2:
						for _, member := range r.b.Members(group) {
							_ = r.b.Evict(t.Context(), group, member) // it may have left
						}
					case 3:
						processes[i].network.Kill()
						fallthrough
					case 4:
						_ = processes[i].Stop(t.Context()) // it may not reach a broker
						processes[i] = r.start(network.link)
					}
				}
				network.set(nil)
				r.within(3*time.Minute, "all committed", r.committed(0, 1, 2, 3))
				require.Len(t, r.accepted, rounds*3*4)
				r.within(3*time.Minute, "no failure is left", func() bool {
					return processes[0].Health().Err() == nil && processes[1].Health().Err() == nil
				})
				r.stop(processes[0])
				r.stop(processes[1])
			})
		})
	}
}

func TestCommitOfEndedGenerationIsRefused(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		p := r.start(nil)
		r.within(5*time.Second, "it has joined", r.assigned(p, 1))
		transport := &kafka.Transport{Dial: r.b.Client(nil).Dial}
		client := &kafka.Client{Addr: kafka.TCP(r.b.Addresses()...), Transport: transport}
		health := p.Health()
		commit := func(generation int, member string) error {
			answer, err := client.OffsetCommit(t.Context(), &kafka.OffsetCommitRequest{GroupID: group, MemberID: member,
				GenerationID: generation, Topics: map[string][]kafka.OffsetCommit{topic: {{Partition: 0, Offset: 0}}}})
			require.NoError(t, err)
			return answer.Topics[topic][0].Error
		}
		require.ErrorIs(t, commit(int(health.Generation)-1, health.MemberID), kafka.IllegalGeneration)
		require.ErrorIs(t, commit(int(health.Generation), "stranger"), kafka.UnknownMemberId)
		require.Empty(t, r.b.Commits())
		require.NoError(t, commit(int(health.Generation), health.MemberID))
		require.Len(t, r.b.Commits(), 1)
		transport.CloseIdleConnections()
		r.stop(p)
	})
}
