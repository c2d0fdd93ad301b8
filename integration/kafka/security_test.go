package kafka

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// TestSecuredBroker proves contract 7.5 on a real broker that all parts share. Each part has its
// own topic, group and user.
func TestSecuredBroker(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	t.Run("all", func(t *testing.T) { // ends after all parallel parts
		t.Run("every way in is good for every request", s.waysIn)
		t.Run("a refusal is explained once", s.refusals)
		t.Run("a repaired password is noticed", s.repairedPassword)
		t.Run("a changed password is logged and halts nothing", s.passwordChanged)
		t.Run("a revoked topic right is logged, and so is its return", s.topicRightTaken)
		t.Run("a revoked group right is logged, and so is its return", s.groupRightTaken)
		t.Run("a revoked right to one topic does not stop the other", s.oneTopicTaken)
		t.Run("an unreadable topic is logged and halts nothing", s.describeOnly)
		t.Run("a hidden topic does not stop the others", s.unseenTopic)
		t.Run("publishing needs the right to write", s.writing)
		t.Run("the end of a SASL session loses and logs nothing", s.shortSession)
	})
}

// waysIn makes a consumer send all of its requests: metadata, joining, start offsets, fetching,
// committing, a second member, and heartbeats while an accept delays the rebalance.
func (s secured) waysIn(t *testing.T) {
	trust := s.authority.trust()
	overTLS := s.to(saslTLSListener).trusting(trust)
	for name, w := range map[string]way{
		"TLS":                           s.to(tlsListener).trusting(trust),
		"TLS with a client certificate": s.to(mutualTLSListener).certified(s),
		"PLAIN over TLS":                overTLS.as("PLAIN", plainUser, plainPassword),
		"SCRAM-SHA-256 over TLS":        overTLS.as("SCRAM-SHA-256", "", password),
		"SCRAM-SHA-512 over TLS":        overTLS.as("SCRAM-SHA-512", "", password),
		"SCRAM-SHA-512 without TLS":     s.to(saslListener).as("SCRAM-SHA-512", "", password),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := s.bench(t)
			grant(b, topicRight(b, kadm.OpRead), groupRight(b))
			entered, release := make(chan struct{}, 10), make(chan struct{})
			holding := atomic.Bool{}
			b.ledger.before = func(ctx context.Context, _ []envelope.Received) error {
				if holding.Load() {
					entered <- struct{}{}
					select {
					case <-release:
					case <-ctx.Done():
					}
				}
				return ctx.Err()
			}
			b.fill(20)
			first, firstLogs := w.start(b)
			b.awaitEnd()
			holding.Store(true)
			b.fill(10)
			receive(t, entered)
			second, secondLogs := w.start(b)
			await(t.Context(), 500*time.Millisecond) // two heartbeats, in which the first member must not rejoin
			holding.Store(false)
			close(release)
			eventually(t, "both have a partition", func() bool {
				return len(first.Health().Partitions) == 1 && len(second.Health().Partitions) == 1
			})
			b.fill(20)
			b.awaitEnd()
			stop(t, first)
			b.fill(20)
			b.awaitEnd()
			require.NoError(t, second.Health().Err())
			require.Equal(t, 70, b.ledger.deliveries(b.topic), "each record once")
			require.Empty(t, append(loud(firstLogs), loud(secondLogs)...))
			require.Zero(t, firstLogs.FilterMessageSnippet("heartbeat while draining failed").Len())
		})
	}
}

func (s secured) refusals(t *testing.T) {
	t.Parallel()
	b := s.bench(t)
	b.fill(2)
	trust := s.authority.trust()
	late, other := trust.Clone(), trust.Clone()
	late.Time = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	other.ServerName = "kafka.example"
	overTLS, scram := s.to(saslTLSListener).trusting(trust), s.to(saslListener)
	type refusal struct {
		way      way
		says     []string
		consumer *kafkaconsumer.Consumer
		logs     *observer.ObservedLogs
	}
	cases := map[string]refusal{}
	for name, c := range map[string]refusal{
		"a wrong password": {way: scram.as("SCRAM-SHA-512", "", "wrong-horse"),
			says: []string{"SASL Authentication Failed", "(SCRAM-SHA-512) is refused"}},
		"a wrong password over TLS": {way: overTLS.as("SCRAM-SHA-256", "", "wrong-horse"),
			says: []string{"SASL Authentication Failed", "(SCRAM-SHA-256) is refused"}},
		"a wrong password of PLAIN": {way: overTLS.as("PLAIN", plainUser, "wrong-horse"),
			says: []string{"Invalid username or password", `user "plain-user" (PLAIN) is refused`}},
		"an unknown user": {way: scram.as("SCRAM-SHA-256", "nobody", password),
			says: []string{"SASL Authentication Failed", `user "nobody" (SCRAM-SHA-256) is refused: unknown`}},
		"a mechanism that is not offered": {way: scram.as("PLAIN", plainUser, plainPassword),
			says: []string{"Unsupported SASL Mechanism", "does not offer PLAIN"}},
		"SASL to a listener without": {way: s.to(tlsListener).trusting(trust).as("SCRAM-SHA-512", "",
			password), says: []string{"does not use SASL"}},
		"no SASL to a listener with": {way: scram,
			says: []string{"the broker closed the connection", "may require TLS or SASL"}},
		"an authority that is not trusted": {way: s.to(tlsListener).trusting(&tls.Config{}),
			says: []string{"TLS handshake with " + s.Listener(tlsListener)[0], "certificate signed by unknown authority",
				"TLS.RootCAs"}},
		"a certificate that has expired": {way: s.to(tlsListener).trusting(late),
			says: []string{"TLS handshake with", "certificate has expired"}},
		"a certificate of another host": {way: s.to(tlsListener).trusting(other),
			says: []string{"TLS handshake with", "not kafka.example"}},
		"no client certificate": {way: s.to(mutualTLSListener).trusting(trust),
			says: []string{"client certificate"}},
		"no TLS to a listener with": {way: s.to(tlsListener),
			says: []string{"broker appears to be expecting TLS"}},
		"no TLS to a listener with, logging in": {way: s.to(saslTLSListener).as("SCRAM-SHA-512", "", password),
			says: []string{"broker appears to be expecting TLS"}},
		"TLS to a listener without": {way: s.to(saslListener).trusting(trust),
			says: []string{"TLS handshake with", "may not use TLS"}},
		"TLS to a listener without, logging in": {way: s.to(saslListener).trusting(trust).as("SCRAM-SHA-512", "",
			password), says: []string{"TLS handshake with", "may not use TLS"}},
	} {
		c.consumer, c.logs = c.way.start(b)
		cases[name] = c
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			text := says(t, c.consumer, c.says...)
			require.Error(t, c.consumer.Health().GroupErr)
			require.NotContains(t, text, password)
			require.NotContains(t, text, "wrong-horse")
			require.Equal(t, kafkaconsumer.StateWaiting, c.consumer.State())
		})
	}
	await(t.Context(), 1500*time.Millisecond) // time for several retries
	for name, c := range cases {
		require.Len(t, loud(c.logs), 1, name)
		stop(t, c.consumer)
	}
	require.Zero(t, b.ledger.accepted(b.topic))
}

func (s secured) repairedPassword(t *testing.T) {
	t.Parallel()
	b := s.bench(t)
	grant(b, topicRight(b, kadm.OpRead), groupRight(b))
	b.fill(10)
	c, logs := s.to(saslListener).as("SCRAM-SHA-512", "", "battery-staple").start(b)
	says(t, c, "is refused")
	s.setPassword(b, "battery-staple")
	b.awaitEnd()
	eventually(t, "well", func() bool { return c.Health().Err() == nil })
	require.Len(t, loud(logs), 1)
}

// passwordChanged checks that existing connections work until their session ends, and that fetching
// and joining are refused then.
func (s secured) passwordChanged(t *testing.T) {
	t.Parallel()
	b := s.bench(t)
	grant(b, topicRight(b, kadm.OpRead), groupRight(b))
	c, logs := s.to(shortListener).as("SCRAM-SHA-256", "", password).start(b, soonForgotten)
	b.fill(10)
	b.awaitEnd()
	s.setPassword(b, "battery-staple")
	says(t, c, "join group", "is refused")
	b.fill(10)
	await(t.Context(), time.Second)
	require.Empty(t, c.Health().Halted())
	require.Equal(t, 10, b.ledger.accepted(b.topic))
	s.setPassword(b, password)
	b.awaitEnd()
	eventually(t, "well", func() bool { return c.Health().Err() == nil })
	require.Equal(t, 20, b.ledger.accepted(b.topic))
	require.LessOrEqual(t, len(loud(logs)), 2, "of fetching and of the group: %q", loud(logs))
}

func (s secured) topicRightTaken(t *testing.T) {
	t.Parallel()
	b := s.bench(t)
	right := topicRight(b, kadm.OpRead)
	s.rightTaken(b, right, "READ", fmt.Sprintf("%q", b.topic))
}

func (s secured) groupRightTaken(t *testing.T) {
	t.Parallel()
	b := s.bench(t)
	s.rightTaken(b, groupRight(b), "Group Authorization Failed",
		fmt.Sprintf("user %q (SCRAM-SHA-512) needs the right READ on the group %q", b.topic, b.group))
}

// rightTaken removes a right during an accept, so that the accepted records cannot be committed,
// and restores it later.
func (s secured) rightTaken(b *bench, right *kadm.ACLBuilder, words ...string) {
	t := b.t
	grant(b, topicRight(b, kadm.OpRead), groupRight(b))
	entered, release := make(chan struct{}, 10), make(chan struct{})
	holding := atomic.Bool{}
	b.ledger.before = func(ctx context.Context, _ []envelope.Received) error {
		if holding.CompareAndSwap(true, false) {
			entered <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	}
	b.fill(10)
	c, logs := s.to(saslListener).as("SCRAM-SHA-512", "", password).start(b, soonForgotten)
	b.awaitEnd()
	earlier := len(loud(logs)) // the broker may not know the user at once
	holding.Store(true)
	b.fill(10)
	receive(t, entered)
	revoke(b, right)
	await(t.Context(), 300*time.Millisecond) // the broker applies it a moment later
	close(release)
	text := says(t, c, words...)
	t.Log(text)
	b.fill(10)
	await(t.Context(), 1500*time.Millisecond)
	require.Empty(t, c.Health().Halted())
	committed, err := b.committed(b.group)
	require.NoError(t, err)
	require.LessOrEqual(t, committed[0]+committed[1], int64(20), "what came since cannot be read or committed")
	grant(b, right)
	b.awaitEnd()
	require.Equal(t, 30, b.ledger.accepted(b.topic))
	eventually(t, "well", func() bool { return c.Health().Err() == nil })
	lines := loud(logs)[earlier:]
	require.LessOrEqual(t, len(lines), 4, "a line for each that fails: %q", lines)
	slices.Sort(lines)
	require.Len(t, slices.Compact(lines), len(lines), "none is repeated")
}

// oneTopicTaken removes the right on one of two topics. The group's leader requests the partitions
// of both, and is refused for both.
func (s secured) oneTopicTaken(t *testing.T) {
	t.Parallel()
	b := s.bench(t)
	other := b.topic + "-other"
	_, err := b.admin.CreateTopic(t.Context(), 2, 1, nil, other)
	require.NoError(t, err)
	toOther := rights(b, kadm.OpRead).Topics(other)
	grant(b, topicRight(b, kadm.OpRead), toOther, groupRight(b))
	entered, release := make(chan struct{}, 10), make(chan struct{})
	b.ledger.before = func(ctx context.Context, received []envelope.Received) error {
		if slices.ContainsFunc(received, func(r envelope.Received) bool {
			return r.Record.Topic == other && string(r.Record.Value) == "held"
		}) {
			entered <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	}
	c, _ := s.to(saslListener).as("SCRAM-SHA-512", "", password).start(b, func(c *kafkaconsumer.Config) {
		c.Topics, c.WatchInterval = append(c.Topics, other), 2*time.Second
	})
	eventually(t, "assigned", func() bool { return len(c.Health().Partitions) == 4 })
	b.fill(10)
	require.NoError(t, b.client.ProduceSync(t.Context(), &kgo.Record{Topic: other, Value: []byte("held")}).FirstErr())
	receive(t, entered)
	revoke(b, toOther)
	await(t.Context(), 300*time.Millisecond) // the broker applies it a moment later
	close(release)
	eventually(t, "denied", func() bool { return slices.Equal(c.Health().DeniedTopics, []string{other}) })
	b.fill(10)
	b.awaitEnd()
	require.Equal(t, 20, b.ledger.accepted(b.topic))
	grant(b, toOther)
	eventually(t, "well", func() bool { h := c.Health(); return h.Err() == nil && len(h.Partitions) == 4 })
	require.NoError(t, b.client.ProduceSync(t.Context(), &kgo.Record{Topic: other, Value: []byte("after")}).FirstErr())
	eventually(t, "read on", func() bool { return b.ledger.accepted(other) == 2 })
}

func (s secured) describeOnly(t *testing.T) {
	t.Parallel()
	b := s.bench(t)
	grant(b, topicRight(b, kadm.OpDescribe), groupRight(b))
	b.fill(10)
	c, logs := s.to(saslListener).as("SCRAM-SHA-512", "", password).start(b)
	says(t, c, b.topic+"/0: fetching fails", "Topic Authorization Failed",
		fmt.Sprintf("user %q (SCRAM-SHA-512) needs the right READ on the topics [%q]", b.topic, b.topic))
	await(t.Context(), time.Second)
	require.Empty(t, c.Health().Halted())
	require.Len(t, loud(logs), 1)
	grant(b, topicRight(b, kadm.OpRead))
	b.awaitEnd()
	eventually(t, "well", func() bool { return c.Health().Err() == nil })
}

func (s secured) unseenTopic(t *testing.T) {
	t.Parallel()
	b := s.bench(t)
	unseen := b.topic + "-unseen"
	grant(b, topicRight(b, kadm.OpRead), groupRight(b))
	b.fill(10)
	c, logs := s.to(saslListener).as("SCRAM-SHA-512", "", password).start(b, func(c *kafkaconsumer.Config) {
		c.Topics = append(c.Topics, unseen)
	})
	b.awaitEnd()
	require.Equal(t, []string{unseen}, c.Health().DeniedTopics)
	require.Empty(t, c.Health().MissingTopics)
	says(t, c, fmt.Sprintf("topics [%q]: the right READ is missing, and they may not exist", unseen))
	require.Len(t, loud(logs), 1)
}

// shortSession checks SASL sessions that end. Brokers then close the connection at its next use,
// and kafka-go does not log in again on it.
func (s secured) shortSession(t *testing.T) {
	t.Parallel()
	b := s.bench(t)
	grant(b, topicRight(b, kadm.OpRead), groupRight(b))
	c, logs := s.to(shortListener).as("SCRAM-SHA-512", "", password).start(b)
	produced := 0
	for began := time.Now(); time.Since(began) < 5*shortSession/2; {
		b.fill(10)
		produced += 10
		await(t.Context(), 20*time.Millisecond)
	}
	b.awaitEnd()
	require.Equal(t, produced, b.ledger.accepted(b.topic))
	require.NotZero(t, c.Health().Rebalances, "no session ended")
	t.Log(c.Health().Rebalances, "rebalances,", b.ledger.deliveries(b.topic)-produced, "of", produced, "delivered again")
	require.Empty(t, loud(logs))
	require.NoError(t, c.Health().Err())
}
