package kafkaconsumer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func valid() kafkaconsumer.Config {
	return kafkaconsumer.Config{Brokers: []string{"127.0.0.1:9092"}, Topics: []string{"orders"}, GroupID: "g"}
}

// Contract 9, its rows of the consumer.
func TestDefaultsMatchTheContract(t *testing.T) {
	c := kafkaconsumer.DefaultConfig()
	require.Equal(t, []int{1000, 4 << 20, 64 << 20, 128 << 20},
		[]int{c.BatchRecords, c.BatchBytes, c.BufferBytes, c.MaxBatchBytes})
	require.Equal(t, []time.Duration{10 * time.Millisecond, 10 * time.Second, time.Second, 100 * time.Millisecond,
		2 * time.Minute},
		[]time.Duration{c.Linger, c.SessionTimeout, c.HeartbeatInterval, c.CommitInterval, c.ProgressTimeout})
	require.Equal(t, kafkaconsumer.ReadCommitted, c.Isolation)
	require.Equal(t, kafkaconsumer.First, c.StartOffset)
	c.Brokers, c.Topics, c.GroupID = valid().Brokers, valid().Topics, valid().GroupID
	require.NoError(t, c.Validate())
	require.NoError(t, valid().Validate())
}

func TestConfigErrorsNameFieldValueAndAllowedValues(t *testing.T) {
	for want, change := range map[string]func(*kafkaconsumer.Config){
		`Brokers is empty: must have at least one host:port`: func(c *kafkaconsumer.Config) { c.Brokers = nil },
		`Brokers has "kafka": must be host:port`: func(c *kafkaconsumer.Config) {
			c.Brokers = []string{"kafka"}
		},
		`Brokers has "kafka:0": must be`: func(c *kafkaconsumer.Config) {
			c.Brokers = []string{"kafka:0"}
		},
		`Brokers has "kafka:70000": must be`: func(c *kafkaconsumer.Config) {
			c.Brokers = []string{"kafka:70000"}
		},
		`Brokers has ":9092": must be`: func(c *kafkaconsumer.Config) {
			c.Brokers = []string{":9092"}
		},
		`Brokers has "a:1,b:2": must be`: func(c *kafkaconsumer.Config) {
			c.Brokers = []string{"a:1,b:2"}
		},
		`Topics is empty`: func(c *kafkaconsumer.Config) { c.Topics = nil },
		`Topics has "a b": must be 1 to 249`: func(c *kafkaconsumer.Config) {
			c.Topics = []string{"a b"}
		},
		`Topics has "..": must be`: func(c *kafkaconsumer.Config) {
			c.Topics = []string{".."}
		},
		`Topics has "a" twice`: func(c *kafkaconsumer.Config) {
			c.Topics = []string{"a", "a"}
		},
		`DeadLetterTopic = "a b": must be 1 to 249`: func(c *kafkaconsumer.Config) {
			c.DeadLetterTopic = "a b"
		},
		`DeadLetterTopic = "orders": must be a topic that is not one of Topics`: func(c *kafkaconsumer.Config) {
			c.DeadLetterTopic = "orders"
		},
		`Partitions is empty: must have at least one partition, or be nil for all`: func(c *kafkaconsumer.Config) {
			c.Partitions = []int{}
		},
		`Partitions has -1: must be 0 to 2147483647`: func(c *kafkaconsumer.Config) { c.Partitions = []int{0, -1} },
		`Partitions has 3 twice`:                     func(c *kafkaconsumer.Config) { c.Partitions = []int{3, 1, 3} },
		`StartOffset = none: must be first or last unless option Partitions is set`: func(c *kafkaconsumer.Config) {
			c.StartOffset = kafkaconsumer.None
		},
		`GroupID = "": must be`: func(c *kafkaconsumer.Config) { c.GroupID = "" },
		`StartOffset = "newest": must be first, last or none`: func(c *kafkaconsumer.Config) {
			c.StartOffset = "newest"
		},
		`Isolation = "dirty": must be read_committed or read_uncommitted`: func(c *kafkaconsumer.Config) {
			c.Isolation = "dirty"
		},
		`SASL mechanism = "GSSAPI": must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512`: func(c *kafkaconsumer.Config) {
			c.SASL = kafkaconsumer.SASL{Mechanism: "GSSAPI", Username: "u"}
		},
		`SASL mechanism PLAIN has an empty username`: func(c *kafkaconsumer.Config) {
			c.SASL.Mechanism = "PLAIN"
		},
		`SASL has a username or password but no mechanism`: func(c *kafkaconsumer.Config) {
			c.SASL.Username = "u"
		},
		`SASL username or password cannot be used with SCRAM-SHA-256`: func(c *kafkaconsumer.Config) {
			c.SASL = kafkaconsumer.SASL{Mechanism: "SCRAM-SHA-256", Username: "u\x00"}
		},
		`BatchRecords = -1: must be 1 to 1000000`: func(c *kafkaconsumer.Config) { c.BatchRecords = -1 },
		`FetchMaxBytes = -5`:                      func(c *kafkaconsumer.Config) { c.FetchMaxBytes = -5 },
		`Linger = -1s: must be`:                   func(c *kafkaconsumer.Config) { c.Linger = -time.Second },
		`HeartbeatInterval = 4s: must be less than a third of SessionTimeout (10s)`: func(c *kafkaconsumer.Config) {
			c.HeartbeatInterval = 4 * time.Second
		},
		`HeartbeatInterval = 2s: must be less than a third of SessionTimeout (6s)`: func(c *kafkaconsumer.Config) {
			c.HeartbeatInterval, c.SessionTimeout = 2*time.Second, 6*time.Second
		},
		`DrainTimeout = 30s: must be less than RebalanceTimeout (30s)`: func(c *kafkaconsumer.Config) {
			c.DrainTimeout = 30 * time.Second
		},
		`option Decoder.Mode = "avro": must be`: func(c *kafkaconsumer.Config) {
			c.Decoder = envelope.DecoderConfig{Mode: "avro"}
		},
	} {
		t.Run(want, func(t *testing.T) {
			c := valid()
			change(&c)
			require.ErrorContains(t, c.Validate(), want)
			_, err := kafkaconsumer.New("orders.events", c, acceptor{}, nil, nil)
			require.ErrorContains(t, err, `channel "orders.events"`)
			require.ErrorContains(t, err, want)
		})
	}
}

func FuzzValidateNeverPanics(f *testing.F) {
	f.Add("127.0.0.1:9092", "orders", "group", "PLAIN", "user", int64(time.Second), 5)
	f.Add("[::1]:1", strings.Repeat("x", 250), "", "SCRAM-SHA-512", "\u00ad", int64(-1), -1)
	f.Fuzz(func(t *testing.T, broker, topic, group, mechanism, user string, d int64, n int) {
		c := kafkaconsumer.Config{
			Brokers: []string{broker}, Topics: []string{topic}, GroupID: group,
			SASL:           kafkaconsumer.SASL{Mechanism: mechanism, Username: user, Password: user},
			SessionTimeout: time.Duration(d), HeartbeatInterval: time.Duration(d / 4), BatchBytes: n,
		}
		if c.Validate() == nil { // then nothing can go wrong in New
			_, err := kafkaconsumer.New("c", c, acceptor{}, nil, nil)
			require.NoError(t, err)
		}
	})
}

type acceptor struct{ kafkaconsumer.Acceptor }

func (acceptor) AcceptGap(context.Context, string, envelope.Gap) (envelope.Disposition, error) {
	return envelope.Halt, nil
}

func (acceptor) AcceptRecords(context.Context, string, []envelope.Received) ([]envelope.Result, error) {
	return nil, nil
}

func TestUnreachableBrokerNeitherFailsNorHangsStartAndStop(t *testing.T) {
	cfg := valid()
	cfg.Brokers = []string{"127.0.0.1:1"} // no server listens there
	c, err := kafkaconsumer.New("orders.events", cfg, acceptor{}, nil, nil)
	require.NoError(t, err)
	require.Equal(t, kafkaconsumer.StateNew, c.State())
	require.NoError(t, c.Start(t.Context()))
	require.Eventually(t, func() bool { return c.Health().GroupErr != nil }, testenv.Patience, 10*time.Millisecond)
	require.ErrorContains(t, c.Health().Err(), "127.0.0.1:1")
	require.NoError(t, c.Stop(t.Context()))
	require.Equal(t, kafkaconsumer.StateStopped, c.State())
}

func TestNewNeedsAChannelAndAnAcceptor(t *testing.T) {
	_, err := kafkaconsumer.New("", valid(), acceptor{}, nil, nil)
	require.Error(t, err)
	_, err = kafkaconsumer.New("c", valid(), nil, nil, nil)
	require.ErrorContains(t, err, `"c"`)
}
