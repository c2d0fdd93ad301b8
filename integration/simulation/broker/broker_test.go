//go:build !race

// The race detector of Go 1.26 ends such a process now and then: "ThreadSanitizer: CHECK failed: tsan_rtl.cpp:282".

package broker_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
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
	kafkaconsumer.Acceptor // nil: no partition that halts is resumed
	t                      *testing.T
	b                      *broker.Broker
	partitions             int

	mu       sync.Mutex
	next     map[broker.Partition]int64 // all records of the log before it are accepted
	accepted map[string]int             // by value
	gaps     []envelope.Gap
	halting  bool                     // whether gaps halt
	last     map[string]broker.Commit // of a partition in a generation

	processes []process
}

// bubble runs a test in virtual time. Goroutines that are left at its end fail it.
func bubble(t *testing.T, partitions int, test func(t *testing.T, r *rig), opts ...kfake.Opt) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, err := broker.New(2, opts...)
		require.NoError(t, err)
		r := &rig{t: t, b: b, partitions: partitions, next: map[broker.Partition]int64{},
			accepted: map[string]int{}, last: map[string]broker.Commit{}}
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

// judge checks that a commit passes nothing that is not accepted, and does not move back in a generation and a log. The
// log is another one after an offset that names a deleted topic.
func (r *rig) judge(c broker.Commit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if accepted := r.next[broker.Partition{Topic: c.Topic, ID: c.Partition}]; c.Offset > accepted {
		r.t.Errorf("committed %+v, accepted is %d", c, accepted)
	}
	key := fmt.Sprint(c.Generation, c.TopicID, c.Partition)
	if last := r.last[key]; c.Offset < last.Offset && (!namesDeleted(last) || namesDeleted(c)) {
		r.t.Errorf("committed %+v after %+v", c, last)
	}
	r.last[key] = c
}

// named returns the topic's ID in a commit's metadata, which may be empty.
func named(c broker.Commit) string {
	rest, _ := strings.CutPrefix(c.Metadata, "inbox topic=")
	id, _, _ := strings.Cut(rest, " ")
	return id
}

// namesDeleted reports whether a commit names another topic than the one that exists.
func namesDeleted(c broker.Commit) bool {
	return named(c) != "" && named(c) != base64.RawURLEncoding.EncodeToString(c.TopicID[:])
}

// continues stops a process and checks that the next one goes on after it: without another gap, and with commits that
// name the present topic.
func (r *rig) continues(p process) {
	r.t.Helper()
	r.stop(p)
	gaps := len(r.gaps)
	p = r.start(nil)
	r.produce(1)
	r.within(time.Minute, "all committed", r.committed)
	require.Len(r.t, r.gaps, gaps)
	commits := r.b.Commits()
	last := commits[len(commits)-1]
	require.NotEmpty(r.t, named(last))
	require.False(r.t, namesDeleted(last), "%+v", last)
	r.stop(p)
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
	if r.halting {
		return envelope.Halt, nil
	}
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
func (r *rig) start(link broker.Link, change ...func(*kafkaconsumer.Config)) process {
	r.t.Helper()
	network := r.b.Client(link)
	cfg := kafkaconsumer.Config{
		Brokers: r.b.Addresses(), Topics: []string{topic}, GroupID: group, Dial: network.Dial, DeadLetterTopic: deadLetters,
		Decoder: envelope.DecoderConfig{Type: "order.placed", ID: envelope.KafkaCoordinates()},
	}
	for _, c := range change {
		c(&cfg)
	}
	c, err := kafkaconsumer.New("orders.events", cfg, r, nil, nil)
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

// TestLastCommitFindsItsCoordinatorOnANewConnection covers a connection that was lost unnoticed, for example because
// its SASL session expired.
func TestLastCommitFindsItsCoordinatorOnANewConnection(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		network := &switched{}
		p := r.start(network.link, func(c *kafkaconsumer.Config) { c.CommitInterval = time.Hour })
		r.produce(5)
		r.within(5*time.Second, "all accepted", func() bool { return len(r.accepted) == 5 })
		network.set(func(_ context.Context, request string, do func() error) error {
			if request != "FindCoordinator" {
				return do()
			}
			network.set(nil)
			return errLost
		})
		r.stop(p)
		require.True(t, r.committed())
		require.NoError(t, p.Health().CommitErr)
	})
}

// readOnce checks that n records were accepted, each of them once.
func (r *rig) readOnce(n int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(r.t, r.accepted, n)
	for value, times := range r.accepted {
		require.Equal(r.t, 1, times, value)
	}
}

// TestCommitFollowsTheCoordinator covers a coordinator that moves while a commit is on its way.
func TestCommitFollowsTheCoordinator(t *testing.T) {
	for name, failure := range map[string]error{"the connection is lost": errLost, "the old coordinator refuses": nil} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, r *rig) {
				network := &switched{}
				p := r.start(network.link)
				r.within(5*time.Second, "it has joined", r.joined(p))
				for round := range 3 {
					network.set(func(_ context.Context, request string, do func() error) error {
						if request != "OffsetCommit" {
							return do()
						}
						network.set(nil)
						r.b.MoveCoordinator(group)
						if failure != nil {
							return failure
						}
						return do()
					})
					r.produce(5)
					r.within(5*time.Second, "all committed", r.committed)
					r.within(20*time.Second, "it has joined again", r.joined(p))
					pass(5 * time.Second) // the group's heartbeats have noticed by now
					r.within(20*time.Second, "it has joined again", r.joined(p))
					r.readOnce(5 * (round + 1))
				}
				require.NoError(t, p.Health().Err())
				r.stop(p)
			})
		})
	}
}

// TestCommitWaitsForAnUnreachableCoordinator covers commits that lose their connection and cannot make another one. The
// group's own connection works, so the generation goes on. A connection that fails is not tried again at once: where a
// login is refused, tries may lock the user out.
func TestCommitWaitsForAnUnreachableCoordinator(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		network := &switched{}
		p := r.start(network.link)
		r.produce(5)
		r.within(5*time.Second, "all committed", r.committed)
		var mu sync.Mutex
		var found []time.Time
		connecting := false
		network.set(func(_ context.Context, request string, do func() error) error {
			mu.Lock()
			lose := request == "OffsetCommit" || request == "Connect" && connecting // to the coordinator
			connecting = request == "FindCoordinator" || connecting && !lose
			if request == "FindCoordinator" {
				found = append(found, time.Now())
			}
			mu.Unlock()
			if lose {
				return errLost
			}
			return do()
		})
		r.produce(5)
		r.within(10*time.Second, "health names it", func() bool { return p.Health().CommitErr != nil })
		require.ErrorContains(t, p.Health().CommitErr, `cannot reach the coordinator of group "fulfilment": connect to`)
		require.ErrorContains(t, p.Health().Err(), "offsets cannot be committed since")
		r.produce(5)
		pass(30 * time.Second)
		require.False(t, r.committed())
		network.set(nil)
		require.Greater(t, len(found), 5)
		for i := range len(found) - 1 {
			require.GreaterOrEqual(t, found[i+1].Sub(found[i]), 50*time.Millisecond)
		}
		r.within(10*time.Second, "all committed", r.committed)
		require.NoError(t, p.Health().CommitErr)
		require.Zero(t, p.Health().Rebalances)
		r.readOnce(15)
		r.stop(p)
	})
}

// TestCommitAfterASilenceUsesAFreshConnection covers a proxy that forgets a connection that is not used.
func TestCommitAfterASilenceUsesAFreshConnection(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		network := &switched{}
		p := r.start(network.link)
		r.produce(5)
		r.within(5*time.Second, "all committed", r.committed)
		var mu sync.Mutex
		found := 0
		network.set(func(_ context.Context, request string, do func() error) error {
			mu.Lock()
			if request == "FindCoordinator" {
				found++
			}
			old := found == 0
			mu.Unlock()
			if old && request == "OffsetCommit" {
				return broker.ErrSilent
			}
			return do()
		})
		pass(2 * time.Minute)
		for range 3 {
			r.produce(5)
			r.within(time.Second, "all committed", r.committed)
			pass(30 * time.Second)
		}
		require.Equal(t, 1, found, "a connection that is used is kept")
		require.Zero(t, p.Health().Rebalances)
		r.readOnce(20)
		r.stop(p)
	})
}

// TestFailedCommitIsNotReportedOnceAnotherMemberHasThePartition covers a last commit that fails, and a member that then
// has nothing to commit. The other member reads and commits again what the commit was about.
func TestFailedCommitIsNotReportedOnceAnotherMemberHasThePartition(t *testing.T) {
	bubble(t, 2, func(t *testing.T, r *rig) {
		p := r.start(func(_ context.Context, request string, do func() error) error {
			if request == "OffsetCommit" {
				return errLost
			}
			return do()
		})
		at := broker.Partition{Topic: topic, ID: 1}
		_, err := r.b.Produce(t.Context(), at, broker.Record{Value: []byte("1")})
		require.NoError(t, err)
		r.within(5*time.Second, "health names it", func() bool { return p.Health().CommitErr != nil })
		next := r.start(nil)
		r.within(20*time.Second, "both have one", r.joined(p, next))
		for p.Health().Partitions[0].Partition == at.ID { // which member gets it is random
			r.stop(next)
			r.within(20*time.Second, "it has both", r.joined(p))
			next = r.start(nil)
			r.within(20*time.Second, "both have one", r.joined(p, next))
		}
		r.within(5*time.Second, "committed", func() bool { return r.b.Committed(group)[at] == 1 })
		require.NoError(t, p.Health().CommitErr)
		r.stop(p)
		r.stop(next)
	})
}

// TestLastCommitEndsWithinTheRebalanceTimeout covers a coordinator that does not answer the last commit. The group goes
// on without a member that has not joined again by then.
func TestLastCommitEndsWithinTheRebalanceTimeout(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		network := &switched{}
		p := r.start(network.link, func(c *kafkaconsumer.Config) {
			c.CommitInterval, c.DrainTimeout, c.RebalanceTimeout = time.Hour, time.Second, 3*time.Second
		})
		r.produce(5)
		r.within(5*time.Second, "all accepted", func() bool { return len(r.accepted) == 5 })
		network.set(func(_ context.Context, request string, do func() error) error {
			if request == "OffsetCommit" {
				return broker.ErrSilent
			}
			return do()
		})
		stopped := make(chan error)
		go func() { stopped <- p.Stop(context.Background()) }()
		r.within(3*time.Second, "the last commit has failed", func() bool { return p.Health().CommitErr != nil })
		require.NoError(t, <-stopped)
	})
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
		r.continues(p)
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

// TestOffsetOfDeletedLogIsNotReadInNewLog proves contract 7.5 where a commit outlasts its topic:
//
//  1. A consumer accepts 5 records. Its commit is slow.
//  2. The topic is deleted and created again, and gets 7 records.
//  3. The commit arrives. It names the topic, so the broker stores 5 for the new log.
//  4. The process dies before its next fetch. Its successor must not begin at 5.
func TestOffsetOfDeletedLogIsNotReadInNewLog(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		network := &switched{}
		p := r.start(network.link)
		r.within(5*time.Second, "it has joined", r.joined(p))
		recreated := make(chan struct{})
		network.set(func(_ context.Context, request string, do func() error) error {
			if request == "OffsetCommit" {
				<-recreated
				p.network.Kill()
			}
			return do()
		})
		r.produce(5)
		pass(500 * time.Millisecond)
		require.Len(t, r.accepted, 5)
		require.NoError(t, r.b.RecreateTopic(topic))
		r.produce(7)
		close(recreated)
		_ = p.Stop(t.Context()) // it reaches no broker
		require.EqualValues(t, 5, r.b.Committed(group)[broker.Partition{Topic: topic}], "of the deleted log")
		r.halting = true
		for range 2 { // the halt survives a restart
			next := r.start(nil)
			r.within(time.Minute, "it is halted", func() bool { return len(next.Health().Halted()) == 1 })
			var halt *kafkaconsumer.TopicRecreatedError
			require.ErrorAs(t, next.Health().Halted()[0].Halted, &halt)
			require.Equal(t, []int64{5, 0}, []int64{halt.Offset, halt.First})
			r.stop(next)
		}
		r.halting = false
		next := r.start(nil)
		r.within(time.Minute, "the new log is committed", r.committed)
		require.Len(t, r.gaps, 1)
		require.Equal(t, []int64{5, 0}, []int64{r.gaps[0].From, r.gaps[0].To})
		require.Len(t, r.accepted, 5+7)
		r.continues(next)
	})
}

// TestBeginningOfDeletedLogIsNotReadInNewLog proves contract 7.5 for a group that begins at Last while its topic is
// created again: the end of the deleted log must not count for the new one.
func TestBeginningOfDeletedLogIsNotReadInNewLog(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		r.produce(5)
		r.next[broker.Partition{Topic: topic}] = 5
		listed := make(chan struct{})
		p := r.start(func(_ context.Context, request string, do func() error) error {
			err := do()
			if request == "ListOffsets" {
				<-listed
			}
			return err
		}, func(c *kafkaconsumer.Config) { c.StartOffset = kafkaconsumer.Last })
		pass(2 * time.Second) // the end of the log is on its way
		require.NoError(t, r.b.RecreateTopic(topic))
		r.produce(7)
		close(listed)
		r.within(time.Minute, "the new log is committed", r.committed)
		commits := r.b.Commits()
		require.EqualValues(t, 5, commits[0].Offset, "of the deleted log")
		require.Len(t, r.gaps, 1)
		r.readOnce(7)
		r.stop(p)
	})
}

// TestBeginningIsNotRepeatedOnceTheGroupHasBegun covers a group that begins at Last. The response to its first commit
// is lost, and the connection for another try takes seconds, in which the partition is read and committed.
func TestBeginningIsNotRepeatedOnceTheGroupHasBegun(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		r.produce(5)
		r.next[broker.Partition{Topic: topic}] = 5
		var mu sync.Mutex
		lost, delayed := false, false
		p := r.start(func(ctx context.Context, request string, do func() error) error {
			mu.Lock()
			lose := request == "OffsetCommit" && !lost
			lost = lost || lose
			delay := request == "FindCoordinator" && lost && !delayed
			delayed = delayed || delay
			mu.Unlock()
			if lose {
				return errors.Join(do(), errLost)
			}
			if delay {
				select {
				case <-time.After(4 * time.Second):
				case <-ctx.Done():
				}
			}
			return do()
		}, func(c *kafkaconsumer.Config) { c.StartOffset = kafkaconsumer.Last })
		pass(3 * time.Second)
		r.produce(20)
		pass(30 * time.Second)
		require.EqualValues(t, 25, r.b.Committed(group)[broker.Partition{Topic: topic}])
		r.readOnce(20)
		r.stop(p)
	})
}

// TestOldBrokersGetNoMetadata covers brokers that know no IDs of topics, and their versions of commits.
func TestOldBrokersGetNoMetadata(t *testing.T) {
	for name, versions := range map[string]*kversion.Versions{"1.0": kversion.V1_0_0(), "2.0": kversion.V2_0_0(),
		"2.7": kversion.V2_7_0()} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, func(t *testing.T, r *rig) {
				for round := range 2 {
					p := r.start(nil)
					r.produce(5)
					r.within(5*time.Second, "all committed", r.committed)
					require.NoError(t, p.Health().Err())
					r.stop(p)
					r.readOnce(10 * (round + 1))
				}
				for _, c := range r.b.Commits() {
					require.Empty(t, c.Metadata)
				}
			}, kfake.MaxVersions(versions))
		})
	}
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

// TestCommittedMetadataDecidesWhetherTheOffsetCounts covers offsets that a consumer finds when it starts.
func TestCommittedMetadataDecidesWhetherTheOffsetCounts(t *testing.T) {
	bubble(t, 1, func(t *testing.T, r *rig) {
		p := r.start(nil)
		r.produce(5)
		r.within(5*time.Second, "all committed", r.committed)
		r.stop(p)
		transport := &kafka.Transport{Dial: r.b.Client(nil).Dial}
		defer transport.CloseIdleConnections()
		client := &kafka.Client{Addr: kafka.TCP(r.b.Addresses()...), Transport: transport}
		ours := r.b.Commits()[0].Metadata
		head, tail, ok := strings.Cut(ours, "topic=")
		require.True(t, ok)
		another := head + "topic=AQAAAAAAAAAAAAAAAAAAAA" + tail[len("AQAAAAAAAAAAAAAAAAAAAA"):]
		for metadata, gaps := range map[string]int{
			"":                     0, // kafka-consumer-groups, or an older version
			"inbox":                0, // another client's
			ours:                   0,
			another + " elsewhere": 0, // of another cluster
			another:                1,
		} {
			r.gaps = nil
			answer, err := client.OffsetCommit(t.Context(), &kafka.OffsetCommitRequest{GroupID: group, GenerationID: -1,
				Topics: map[string][]kafka.OffsetCommit{topic: {{Offset: 3, Metadata: metadata}}}})
			require.NoError(t, err)
			require.NoError(t, answer.Topics[topic][0].Error)
			p := r.start(nil)
			r.within(time.Minute, "all committed", r.committed)
			r.stop(p)
			require.Len(t, r.gaps, gaps, metadata)
		}
	})
}
