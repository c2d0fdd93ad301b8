//go:build !race

// The race detector of Go 1.26 ends such a process now and then: "ThreadSanitizer: CHECK failed: tsan_rtl.cpp:282".

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
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	topic       = "orders"
	deadLetters = "orders.dead"
	group       = "fulfilment"
)

// rig is a cluster of two brokers with one topic, and what its consumers have accepted.
type rig struct {
	kafkaconsumer.Acceptor // nil: no partition halts
	t                      *testing.T
	b                      *broker.Broker
	partitions             int

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
		r := &rig{t: t, b: b, partitions: partitions, next: map[broker.Partition]int64{},
			accepted: map[string]int{}, last: map[string]int64{}}
		b.OnCommit = r.judge
		require.NoError(t, b.CreateTopic(topic, partitions))
		require.NoError(t, b.CreateTopic(deadLetters, 1))
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
	results := make([]envelope.Result, len(received))
	for i, one := range received {
		at := broker.Partition{Topic: one.Record.Topic, ID: one.Record.Partition}
		if one.Record.Offset > r.next[at] {
			r.t.Errorf("%v: accepted %d, expected was %d", at, one.Record.Offset, r.next[at])
		}
		r.next[at] = max(r.next[at], one.Record.Offset+1)
		r.accepted[string(one.Record.Value)]++
		if string(one.Record.Value) == "bad" {
			results[i].Disposition = envelope.DeadLetter
		}
	}
	return results, nil
}

func (r *rig) AcceptGap(_ context.Context, _ string, gap envelope.Gap) (envelope.Disposition, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gaps = append(r.gaps, gap)
	r.next[broker.Partition{Topic: gap.Topic, ID: gap.Partition}] = gap.To
	return envelope.Durable, nil
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
		Brokers: r.b.Addresses(), Topics: []string{topic}, GroupID: group, Dial: network.Dial, DeadLetterTopic: deadLetters,
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

// produce appends n records to each partition.
func (r *rig) produce(n int) {
	r.t.Helper()
	for id := range r.partitions {
		to := broker.Partition{Topic: topic, ID: id}
		end := r.b.End(to)
		records := make([]broker.Record, n)
		for i := range records { // a topic created again begins at 0
			records[i].Value = fmt.Appendf(nil, "%d/%d at %s", id, end+int64(i), time.Now())
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

// committed reports whether everything is committed.
func (r *rig) committed() bool {
	committed := r.b.Committed(group)
	for id := range r.partitions {
		at := broker.Partition{Topic: topic, ID: id}
		if committed[at] != r.b.End(at) {
			return false
		}
	}
	return true
}

// joined returns whether these processes have all partitions, each as many.
func (r *rig) joined(all ...process) func() bool {
	return func() bool {
		for _, p := range all {
			if p.State() != kafkaconsumer.StateRunning || len(p.Health().Partitions) != r.partitions/len(all) {
				return false
			}
		}
		return true
	}
}

func TestConsumerReadsAndCommits(t *testing.T) {
	bubble(t, 3, func(t *testing.T, r *rig) {
		p := r.start(nil)
		r.produce(5)
		r.within(5*time.Second, "all committed", r.committed)
		require.NoError(t, r.b.MoveLeader(broker.Partition{Topic: topic, ID: 1}))
		r.b.MoveCoordinators()
		r.produce(5)
		r.within(20*time.Second, "all committed after leaders and coordinator have moved", r.committed)
		_, err := r.b.Produce(t.Context(), broker.Partition{Topic: topic, ID: 2}, broker.Record{Value: []byte("bad")})
		require.NoError(t, err)
		pass(10 * time.Minute)
		require.NoError(t, p.Health().Err())
		require.Len(t, r.accepted, 31)
		r.stop(p)
		require.Empty(t, r.b.Members(group), "it has left")
		commits := r.b.Commits()
		last := commits[len(commits)-1]
		require.Equal(t, last.Offset, r.b.Committed(group)[broker.Partition{Topic: topic, ID: last.Partition}])
		records, err := r.b.Records(t.Context(), broker.Partition{Topic: deadLetters})
		require.NoError(t, err)
		require.Len(t, records, 1)
		require.Equal(t, "bad", string(records[0].Value))
	})
}

func TestPartitionsMoveBetweenMembers(t *testing.T) {
	bubble(t, 4, func(t *testing.T, r *rig) {
		one := r.start(nil)
		r.within(5*time.Second, "one has all", r.joined(one))
		r.produce(5)
		two := r.start(nil)
		r.within(10*time.Second, "both have two", r.joined(one, two))
		r.produce(5)
		r.within(5*time.Second, "all committed", r.committed)
		require.Len(t, r.b.Members(group), 2)

		require.NoError(t, r.b.Evict(t.Context(), group, one.Health().MemberID))
		r.produce(5)
		r.within(20*time.Second, "the evicted member is back", func() bool {
			return r.committed() && r.joined(one, two)()
		})
		r.stop(one)
		r.within(10*time.Second, "the other has all", r.joined(two))
		three := r.start(nil)
		r.within(20*time.Second, "both have two", r.joined(two, three))
		three.network.Kill()
		took := r.within(20*time.Second, "the other has all", r.joined(two))
		require.Greater(t, took, 8*time.Second, "not before the session timeout, less a heartbeat")
		_ = three.Stop(t.Context()) // to end its goroutines
		r.produce(5)
		r.within(5*time.Second, "all committed", r.committed)
		r.stop(two)
	})
}

// switched is a Link that can be changed.
type switched struct {
	mu   sync.Mutex
	with broker.Link
}

func (s *switched) set(with broker.Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.with = with
}

func (s *switched) link(ctx context.Context, request string, do func() error) error {
	s.mu.Lock()
	with := s.with
	s.mu.Unlock()
	if with == nil {
		return do()
	}
	return with(ctx, request, do)
}

var errLost = errors.New("the connection is lost")

func TestCommitThatLosesItsResponseIsRepeated(t *testing.T) {
	for name, stored := range map[string]int{"request": 1, "response": 2} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, r *rig) {
				network := &switched{}
				p := r.start(network.link)
				r.within(5*time.Second, "it has joined", r.joined(p))
				network.set(func(_ context.Context, request string, do func() error) error {
					if request != "OffsetCommit" {
						return do()
					}
					network.set(nil)
					if stored == 2 {
						require.NoError(t, do())
					}
					return errLost
				})
				r.produce(5)
				r.within(5*time.Second, "all committed", r.committed)
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
		r.produce(5)
		r.within(5*time.Second, "all committed", r.committed)
		r.stop(p)
		r.produce(5)
		require.NoError(t, r.b.DeleteRecords(at, 8))
		p = r.start(nil)
		r.within(20*time.Second, "all committed", r.committed)
		require.Len(t, r.gaps, 1)
		require.Equal(t, []int64{5, 8}, []int64{r.gaps[0].From, r.gaps[0].To})
		require.Len(t, r.accepted, 7)
		r.stop(p)
	})
}

func TestConsumerReadsRecreatedTopicFromItsStart(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		p := r.start(nil)
		r.produce(5)
		r.within(5*time.Second, "all committed", r.committed)
		require.NoError(t, r.b.RecreateTopic(topic))
		r.produce(7)
		r.within(2*time.Minute, "the new logs are committed", r.committed)
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
		network := &switched{}
		p := r.start(network.link)
		r.produce(5)
		r.within(5*time.Second, "all committed", r.committed)
		network.set(func(context.Context, string, func() error) error { return broker.ErrSilent })
		r.produce(5)
		r.within(30*time.Second, "health names it", func() bool { return p.Health().Err() != nil })
		pass(2 * time.Minute)
		require.Empty(t, r.b.Members(group), "its session is over")
		network.set(nil)
		r.within(30*time.Second, "all committed", r.committed)
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
		failure := []error{errLost, broker.ErrSilent}[draw(2)]
		switch draw(50) {
		case 0:
			return failure
		case 1:
			return errors.Join(do(), failure)
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
				network := &switched{}
				network.set(faulty(draw))
				processes := []process{r.start(network.link), r.start(network.link)}
				const rounds = 60
				for range rounds {
					r.produce(3)
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
				r.within(3*time.Minute, "all committed", r.committed)
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
		r.within(5*time.Second, "it has joined", r.joined(p))
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

// TestResponseOfDeletedLogIsDropped proves contract 7.5 where the topic is created again while its first records are on
// their way. Both logs begin at the offset that was asked for.
func TestResponseOfDeletedLogIsDropped(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		r.produce(2)
		network := &switched{}
		fetched, recreated := make(chan struct{}), make(chan struct{})
		network.set(func(_ context.Context, request string, do func() error) error {
			err := do()
			if request == "Fetch" {
				network.set(nil)
				close(fetched)
				<-recreated
			}
			return err
		})
		p := r.start(network.link)
		<-fetched
		require.NoError(t, r.b.RecreateTopic(topic))
		pass(time.Millisecond) // its values are others
		r.produce(3)
		close(recreated)
		r.within(time.Minute, "the new log is committed", r.committed)
		records, err := r.b.Records(t.Context(), broker.Partition{Topic: topic})
		require.NoError(t, err)
		for _, one := range records {
			require.NotZero(t, r.accepted[string(one.Value)], "record %d of the new log", one.Offset)
		}
		r.stop(p)
	})
}
