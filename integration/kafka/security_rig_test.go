package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// password is the password of all SCRAM users in these tests.
const password = "correct-horse"

// bench makes a topic of two partitions, and a user with the topic's name for all SCRAM mechanisms.
// The user has no rights yet.
func (s secured) bench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, s.Brokers())
	b.ledger.sparse = false
	b.createTopic(2, nil)
	s.setPassword(b, password)
	return b.watch()
}

func (s secured) setPassword(b *bench, password string) {
	b.t.Helper()
	for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		altered, err := b.admin.AlterUserSCRAMs(b.t.Context(), nil,
			[]kadm.UpsertSCRAM{{User: b.topic, Mechanism: mechanism, Iterations: 4096, Password: password}})
		require.NoError(b.t, err)
		require.NoError(b.t, altered.Error())
	}
}

// topicRight and the functions below return rights of the bench's user, however the user logs in.
func topicRight(b *bench, operation kadm.ACLOperation) *kadm.ACLBuilder {
	return rights(b, operation).Topics(b.topic)
}

func groupRight(b *bench) *kadm.ACLBuilder { return rights(b, kadm.OpRead).Groups(b.group) }

func rights(b *bench, operation kadm.ACLOperation) *kadm.ACLBuilder {
	return kadm.NewACLs().ResourcePatternType(kadm.ACLPatternLiteral).Operations(operation).
		Allow("User:"+b.topic, "User:CN="+b.topic, "User:"+plainUser).AllowHosts()
}

// grant returns once the broker knows the rights: the controller answers before that.
func grant(b *bench, all ...*kadm.ACLBuilder) {
	b.t.Helper()
	for _, right := range all {
		created, err := b.admin.CreateACLs(b.t.Context(), right)
		require.NoError(b.t, err)
		for _, each := range created {
			require.NoError(b.t, each.Err)
		}
		eventually(b.t, "the broker knows the rights", func() bool {
			known, err := b.admin.DescribeACLs(b.t.Context(), right)
			return err == nil && len(known) > 0 && !slices.ContainsFunc(known, func(each kadm.DescribeACLsResult) bool {
				return each.Err != nil || len(each.Described) == 0
			})
		})
	}
}

func revoke(b *bench, right *kadm.ACLBuilder) {
	b.t.Helper()
	deleted, err := b.admin.DeleteACLs(b.t.Context(), right)
	require.NoError(b.t, err)
	for _, each := range deleted {
		require.NoError(b.t, each.Err)
	}
}

// way is a way for a consumer to connect to the broker.
type way func(b *bench, c *kafkaconsumer.Config)

// to connects to a listener without authentication.
func (s secured) to(listener string) way {
	return func(_ *bench, c *kafkaconsumer.Config) { c.Brokers = s.Listener(listener) }
}

func (w way) trusting(cfg *tls.Config) way {
	return func(b *bench, c *kafkaconsumer.Config) {
		w(b, c)
		c.TLS = cfg
	}
}

// certified adds a certificate for the bench's user.
func (w way) certified(s secured) way {
	return func(b *bench, c *kafkaconsumer.Config) {
		w(b, c)
		c.TLS = s.authority.trust()
		c.TLS.Certificates = []tls.Certificate{s.authority.pair(b.t, b.topic, x509.ExtKeyUsageClientAuth)}
	}
}

// as adds a login. An empty user is the bench's own.
func (w way) as(mechanism, user, password string) way {
	return func(b *bench, c *kafkaconsumer.Config) {
		w(b, c)
		if user == "" {
			user = b.topic
		}
		c.SASL = kafkaconsumer.SASL{Mechanism: mechanism, Username: user, Password: password, AllowWithoutTLS: c.TLS == nil}
	}
}

// start starts a consumer that connects this way, and records its log.
func (w way) start(b *bench, change ...func(*kafkaconsumer.Config)) (*kafkaconsumer.Consumer, *observer.ObservedLogs) {
	b.t.Helper()
	cfg := config(b.brokers, b.topic)
	cfg.GroupID, cfg.SessionTimeout, cfg.HeartbeatInterval = b.group, 6*time.Second, 200*time.Millisecond
	cfg.RequestTimeout, cfg.DialTimeout = 5*time.Second, 5*time.Second
	w(b, &cfg)
	for _, each := range change {
		each(&cfg)
	}
	core, logs := observer.New(zapcore.DebugLevel)
	core = zapcore.NewTee(core, logger(b.t).Core())
	c, err := kafkaconsumer.New("orders.events", cfg, b.ledger, zap.New(core), nil)
	require.NoError(b.t, err)
	b.t.Cleanup(func() {
		stop(b.t, c)
		for _, entry := range logs.All() {
			for _, value := range entry.ContextMap() {
				if text, ok := value.(string); ok && cfg.SASL.Password != "" {
					require.NotContains(b.t, text, cfg.SASL.Password)
				}
			}
		}
	})
	require.NoError(b.t, c.Start(b.t.Context()), "whatever the broker refuses")
	return c, logs
}

// soonForgotten sets a short session, for members that cannot leave because they lack a right or a
// password. The broker keeps their place until the session ends.
func soonForgotten(c *kafkaconsumer.Config) { c.SessionTimeout = 3 * time.Second }

// loud returns what was logged as a warning or worse, one line each.
func loud(logs *observer.ObservedLogs) []string {
	var lines []string
	for _, entry := range logs.Filter(func(e observer.LoggedEntry) bool { return e.Level >= zapcore.WarnLevel }).All() {
		text, _ := entry.ContextMap()["error"].(string)
		lines = append(lines, entry.Message+": "+text)
	}
	return lines
}

// fill produces records to both partitions.
func (b *bench) fill(n int) {
	b.t.Helper()
	var records []*kgo.Record
	for i := range n {
		records = append(records, &kgo.Record{Partition: int32(i % 2), Value: []byte("x")})
	}
	b.produce(b.client, records...)
}

// says waits until the text of the consumer's health contains all of the words.
func says(t *testing.T, c *kafkaconsumer.Consumer, words ...string) string {
	t.Helper()
	text := ""
	require.Eventually(t, func() bool {
		if err := c.Health().Err(); err != nil {
			text = err.Error()
			for _, word := range words {
				if !strings.Contains(text, word) {
					return false
				}
			}
			return true
		}
		return false
	}, patience, 10*time.Millisecond, "health does not say %q", words)
	return text
}
