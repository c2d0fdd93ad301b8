package kafkaconsumer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/kafkaclient"
)

// StartOffset is where a group begins on a partition for which it has no committed offset.
type StartOffset string

// The values of StartOffset.
const (
	// First reads everything the partition holds.
	First StartOffset = "first"
	// Last reads the records that arrive from now on. It is for new groups, without a committed offset on any partition
	// of their topics. The group's leader commits the ends of all partitions in one request before any member reads, so
	// a restart before the first record loses nothing. With ReadCommitted the end is before transactions that are still
	// open.
	//
	// Partitions that have no committed offset later are read from their first record: added partitions, topics that
	// appear, topics that are added to the config, and topics that the leader of a new group once found missing. All
	// members must use Last: they wait for a leader that does not. A group whose offsets have expired on the brokers is
	// new again. So is one of which none of the Partitions exists before a restart: use First or None where they are
	// created later.
	Last StartOffset = "last"
	// None never chooses: a partition without a committed offset is not read, which Health and the log say, until an
	// operator has set its offset. It is for groups that divide a topic, and requires Partitions: a partition that moves
	// goes on at the offset that is carried over, where First would read everything again and Last would skip records. An
	// added partition needs an offset, too: 0. Do not use it for a group that has to begin by itself.
	None StartOffset = "none"
)

// Isolation decides which records of producers' transactions are visible.
type Isolation string

// The isolation levels of Kafka.
const (
	// ReadCommitted hides records of aborted and open transactions.
	ReadCommitted Isolation = "read_committed"
	// ReadUncommitted shows all records, also of transactions that are rolled back.
	ReadUncommitted Isolation = "read_uncommitted"
)

// level is the isolation level as requests name it.
func (i Isolation) level() int8 {
	if i == ReadCommitted {
		return int8(kafka.ReadCommitted)
	}
	return int8(kafka.ReadUncommitted)
}

// SASL configures authentication (contract 7.5). The zero value disables it.
//
// Errors, logs and Health of a Consumer never show the password. Neither do package fmt, encoding/json and zap when
// they get a SASL or a Config. Two things do show it: libraries that dump values by reflection, and fmt for a SASL or
// Config in an unexported field of another struct. Do not print those.
type SASL struct {
	// Mechanism is "PLAIN", "SCRAM-SHA-256" or "SCRAM-SHA-512". Empty means no authentication, or Custom.
	Mechanism string `yaml:"mechanism" env:"MECHANISM"`
	Username  string `yaml:"username" env:"USERNAME"`
	Password  string `yaml:"password" env:"PASSWORD"`
	// Custom is a kafka-go mechanism for everything else, such as a cloud provider's own. Do not
	// set it together with Mechanism.
	Custom sasl.Mechanism `yaml:"-" env:"-"`
	// AllowWithoutTLS allows a mechanism without TLS. Default false: PLAIN without TLS is then an error because it sends
	// the password in clear text, and every other mechanism without TLS logs a warning at start. Do not set it unless
	// everyone who can see the network may know the password and the messages.
	AllowWithoutTLS bool `yaml:"allow_without_tls" env:"ALLOW_WITHOUT_TLS"`
}

// Config configures a Consumer. Brokers, Topics and GroupID are required. Every other field that is
// left zero gets its default (contract 7.5, 9).
type Config struct {
	// Brokers are the first addresses to ask (host:port). One that answers is enough. Name several:
	// the other brokers of a cluster are only found while one of these answers (contract 7.8).
	Brokers []string `yaml:"brokers" env:"BROKERS"`
	// Topics are consumed together and share their message IDs: a topic that other parties may write to belongs in another
	// channel (contract 4.4). A topic that does not exist is reported and waited for, and never created (contract 7.5).
	Topics []string `yaml:"topics" env:"TOPICS"`
	// Partitions are the only partitions that the group reads, the same of each topic: those of one shard, where several
	// databases divide a topic (contract 7.12). An empty list is an error. Nil means all, also a null in YAML or the
	// result of a filter that matched nothing: StartOffset None refuses that. Other partitions are neither assigned nor
	// committed, and cleanup does not wait for them. One that exists in none of the topics degrades health and is waited
	// for; so does one that no member has. All members of a group must have the same list: stop all before you change it.
	// A member never reads a partition that its own list does not name, whatever the group's leader assigns. Each shard
	// needs a group of its own: two groups that name the same partition both read it, as any two groups do. Do not set it
	// where one database holds all messages of the topic.
	Partitions []int `yaml:"partitions" env:"PARTITIONS"`
	// GroupID names the consumer group. All its members must consume the same topics. Another
	// channel needs another group, which is checked at start.
	GroupID string `yaml:"group_id" env:"GROUP_ID"`
	// ClientID names this process to the brokers. Default "inbox".
	ClientID string `yaml:"client_id" env:"CLIENT_ID"`
	// TLS encrypts all connections. Nil means no encryption. An empty ServerName means the host that is connected to.
	// Certificates are shown to brokers that ask for one. Do not set InsecureSkipVerify outside of tests: anyone could
	// then impersonate the broker and learn a PLAIN password.
	TLS *tls.Config `yaml:"-" env:"-"`
	// SASL authenticates all connections. Default none.
	SASL SASL `yaml:"sasl" env:"SASL"`
	// Dial opens all connections, for example through a SOCKS proxy, an SSH tunnel or a service mesh. TLS and SASL work
	// on top of it. The network is "tcp". The address is one of Brokers, or one that the brokers advertise. ctx ends after
	// DialTimeout, and when the consumer cuts its connections; Dial must then return. The connection must support
	// deadlines, and its Close must end running reads and writes: otherwise a silent broker holds up the consumer. Dial is
	// called concurrently. Nil means a net.Dialer. Do not set it to encrypt: TLS also checks who answers.
	Dial func(ctx context.Context, network, address string) (net.Conn, error) `yaml:"-" env:"-"`
	// StartOffset is where a new group begins: First, Last, or with Partitions also None, which waits until an operator
	// has set an offset. Default First. Do not use Last where messages matter that were produced before the first start.
	// Do not use it either where the group may have no members for longer than brokers keep its offsets
	// (offsets.retention.minutes, 7 days by default).
	StartOffset StartOffset `yaml:"start_offset" env:"START_OFFSET"`
	// Isolation is the isolation level. Default ReadCommitted. Do not use ReadUncommitted with
	// transactional producers unless records they roll back may be processed.
	Isolation Isolation `yaml:"isolation" env:"ISOLATION"`
	// Decoder configures how records become messages.
	Decoder envelope.DecoderConfig `yaml:"decoder" env:"DECODER"`

	// BatchRecords, BatchBytes and Linger bound one accept (contract 7.2). It takes the available records, up to the
	// first two limits, and waits no longer than Linger for more. Defaults 1,000, 4 MiB and 10 ms. Raising them gains
	// little: 500 records per transaction are as fast as any number.
	BatchRecords int           `yaml:"batch_records" env:"BATCH_RECORDS"`
	BatchBytes   int           `yaml:"batch_bytes" env:"BATCH_BYTES"`
	Linger       time.Duration `yaml:"linger" env:"LINGER"`
	// AcceptConcurrency is how many accepts may run at once, each for its own partitions. Each one
	// needs a database connection. Default 2. Do not raise it above the number of partitions.
	AcceptConcurrency int `yaml:"accept_concurrency" env:"ACCEPT_CONCURRENCY"`
	// BufferBytes bounds the memory of all records, decompressed, that are fetched and not yet accepted. Default 64
	// MiB. While it is used up, nothing more is fetched, decompressed or decoded, except for one partition at a time,
	// so that a batch larger than the bound passes too. That partition may exceed the bound by one response, one
	// decompressed batch (MaxBatchBytes at most), the memory to decode one record (a few times Decoder.MaxRecordBytes)
	// and four accepts (BatchBytes).
	BufferBytes int `yaml:"buffer_bytes" env:"BUFFER_BYTES"`
	// MaxBatchBytes bounds a record batch, compressed or not. A larger batch halts its partition, because a few bytes can
	// decompress to any number. Default 128 MiB, 1 GiB at most. Do not set it below what producers may write before
	// compression: a broker's message.max.bytes counts after compression.
	MaxBatchBytes int `yaml:"max_batch_bytes" env:"MAX_BATCH_BYTES"`
	// CommitInterval is the shortest time between two commits. Records that are accepted in between are committed
	// together. Default 100 ms. A longer interval means more redeliveries after a crash, not more throughput.
	CommitInterval time.Duration `yaml:"commit_interval" env:"COMMIT_INTERVAL"`

	// SessionTimeout is how long a member may be silent before the broker reassigns its partitions. Default 10 s. Brokers
	// allow 6 s to 30 m unless configured otherwise. After a crash, the partitions stand still for as long.
	SessionTimeout time.Duration `yaml:"session_timeout" env:"SESSION_TIMEOUT"`
	// HeartbeatInterval is how often the member sends a heartbeat and learns of rebalances. Default
	// 1 s. It must be less than a third of SessionTimeout.
	HeartbeatInterval time.Duration `yaml:"heartbeat_interval" env:"HEARTBEAT_INTERVAL"`
	// RebalanceTimeout is how long the broker waits for members to rejoin. Default 30 s.
	RebalanceTimeout time.Duration `yaml:"rebalance_timeout" env:"REBALANCE_TIMEOUT"`
	// DrainTimeout bounds a running accept, and in Inline and Direct channels a record's handlers, once a rebalance or a
	// stop begins; a stop of an inbox also ends them after a quarter of its time. Then the work is abandoned and its
	// records are redelivered. Default half of RebalanceTimeout, 15 s at most.
	DrainTimeout time.Duration `yaml:"drain_timeout" env:"DRAIN_TIMEOUT"`
	// WatchInterval is how often topics are checked for added partitions and for missing topics
	// that appeared. Default 10 s. It is also how often the lag of partitions is asked for that are
	// not being fetched, and how often PublishPoisoned polls for new rows.
	WatchInterval time.Duration `yaml:"watch_interval" env:"WATCH_INTERVAL"`
	// ProgressTimeout is how long a partition with records to read may make no progress before Health and the log report
	// it (contract 7.8). If another error of the partition is reported, this one is not. ProgressTimeout is also how long
	// joining may take before that is reported. Default 2 m. It stops nothing. Do not set it shorter than the slowest
	// accept of a batch, nor, in Inline and Direct channels, shorter than a handler and its retries may take.
	ProgressTimeout time.Duration `yaml:"progress_timeout" env:"PROGRESS_TIMEOUT"`

	// FetchMaxWait is how long a broker holds a fetch for which it has no records. It answers at
	// once when there are any. Default 500 ms.
	FetchMaxWait time.Duration `yaml:"fetch_max_wait" env:"FETCH_MAX_WAIT"`
	// FetchMaxBytes bounds a response per partition. A first record batch that is larger still comes whole. Default 1 MiB.
	FetchMaxBytes int `yaml:"fetch_max_bytes" env:"FETCH_MAX_BYTES"`
	// DialTimeout bounds opening a connection, RequestTimeout the response to a request. Default 5 s each.
	DialTimeout    time.Duration `yaml:"dial_timeout" env:"DIAL_TIMEOUT"`
	RequestTimeout time.Duration `yaml:"request_timeout" env:"REQUEST_TIMEOUT"`

	// DeadLetterTopic receives the bad records of a channel with the policy BadRecordDeadLetter, or the
	// copies of PublishPoisoned, and is required with either (contract 7.4, 7.9). Each record is published
	// unchanged, with additional headers that name its origin and the reason (HeaderTopic and so on). The
	// topic must exist, is never created, and must not be one of Topics.
	//
	// While it cannot be written to, the partition waits before the record. So do the partitions that share its accept
	// worker, after the records that they have accepted already: every AcceptConcurrency-th partition, all of them with
	// 1, and none in Direct channels. Raise AcceptConcurrency, or use BadRecordStore, where that matters. A record that
	// the topic refuses permanently, for example as too large, halts only its partition: give the topic a larger
	// max.message.bytes than Topics have.
	DeadLetterTopic string `yaml:"dead_letter_topic" env:"DEAD_LETTER_TOPIC"`
	// PublishPoisoned publishes a copy of each poisoned message of the channel, and of each record that is kept as
	// rejected (stored bad records, and unrouted ones under Reject), to DeadLetterTopic as well, for teams that watch
	// topics. The rows stay, and operators act on them. Rows are polled for every WatchInterval, and each is published
	// at least once: a crash can repeat it. A copy has the message's content, key and headers, and additional headers
	// for its origin, the error and the attempts (inbox-handler and so on). Messages that were poisoned before the
	// option was set are published, too. Do not consume the topic to run messages again that operators may retry as
	// well. Default off (contract 7.9).
	PublishPoisoned bool `yaml:"publish_poisoned" env:"PUBLISH_POISONED"`

	// OnDeadLetter is called with each bad record that the dead-letter topic has acknowledged and with the record's
	// error, not for copies. It runs on goroutines of the consumer and must not block them. A crash can lose the call,
	// and a redelivery can repeat it.
	OnDeadLetter func(record envelope.Record, reason error) `yaml:"-" env:"-"`
	// OnHalt is called for each partition that halts (contract 7.4), once per halt. It runs on a goroutine of the consumer
	// and must not block it. Use it to end the application. For alerts, watch Health.
	OnHalt func(topic string, partition int, reason error) `yaml:"-" env:"-"`
}

// DefaultConfig returns the defaults of the contract. Brokers, Topics and GroupID remain to be set.
func DefaultConfig() Config { return Config{}.withDefaults() }

// joinBackoff is the pause after a failed join. A long HeartbeatInterval must not prolong it.
func (c Config) joinBackoff() time.Duration { return min(c.HeartbeatInterval, time.Second) }

// withDefaults returns c with defaults for the fields that are zero.
func (c Config) withDefaults() Config {
	orDefault(&c.ClientID, "inbox")
	orDefault(&c.StartOffset, First)
	orDefault(&c.Isolation, ReadCommitted)
	orDefault(&c.BatchRecords, 1000)
	orDefault(&c.BatchBytes, 4<<20)
	orDefault(&c.Linger, 10*time.Millisecond)
	orDefault(&c.AcceptConcurrency, 2)
	orDefault(&c.BufferBytes, 64<<20)
	orDefault(&c.MaxBatchBytes, 128<<20)
	orDefault(&c.CommitInterval, 100*time.Millisecond)
	orDefault(&c.SessionTimeout, 10*time.Second)
	orDefault(&c.HeartbeatInterval, time.Second)
	orDefault(&c.RebalanceTimeout, 30*time.Second)
	orDefault(&c.DrainTimeout, min(c.RebalanceTimeout/2, 15*time.Second))
	orDefault(&c.WatchInterval, 10*time.Second)
	orDefault(&c.ProgressTimeout, 2*time.Minute)
	orDefault(&c.FetchMaxWait, 500*time.Millisecond)
	orDefault(&c.FetchMaxBytes, 1<<20)
	orDefault(&c.DialTimeout, 5*time.Second)
	orDefault(&c.RequestTimeout, 5*time.Second)
	return c
}

func orDefault[T comparable](field *T, value T) { *field = cmp.Or(*field, value) }

// Validate joins an error for every field that is out of range. Each one names the field, its value
// and what is allowed. Fields that are zero count as their default. No value panics.
func (c Config) Validate() error {
	c = c.withDefaults()
	return errors.Join(c.client().Validate(), c.validateTopics(), c.validatePartitions(), c.validateNames(),
		c.validateRanges(), c.Decoder.Validate())
}

// client returns what of the config says how to connect.
func (c Config) client() kafkaclient.Config {
	return kafkaclient.Config{Brokers: c.Brokers, Topics: c.Topics, ClientID: c.ClientID, TLS: c.TLS,
		SASL: kafkaclient.SASL(c.SASL), Dial: c.Dial, DialTimeout: c.DialTimeout, RequestTimeout: c.RequestTimeout}
}

func (c Config) validateTopics() error {
	var all []error
	if len(c.Topics) == 0 {
		all = append(all, errors.New("option Topics is empty: must have at least one topic"))
	}
	seen := map[string]bool{}
	for _, topic := range c.Topics {
		switch {
		case seen[topic]:
			all = append(all, fmt.Errorf("option Topics has %q twice", topic))
		case !kafkaclient.ValidTopic(topic):
			all = append(all, fmt.Errorf("option Topics has %q: must be 1 to 249 letters, digits, '.', '_' and '-'", topic))
		}
		seen[topic] = true
	}
	switch deadLetter := c.DeadLetterTopic; {
	case deadLetter == "" && c.PublishPoisoned:
		all = append(all, errors.New("option DeadLetterTopic is empty: must be a topic with PublishPoisoned"))
	case deadLetter == "":
	case !kafkaclient.ValidTopic(deadLetter):
		all = append(all, fmt.Errorf("option DeadLetterTopic = %q: must be 1 to 249 letters, digits, '.', '_' and '-'",
			deadLetter))
	case seen[deadLetter]:
		all = append(all, fmt.Errorf("option DeadLetterTopic = %q: must be a topic that is not one of Topics", deadLetter))
	}
	return errors.Join(all...)
}

func (c Config) validatePartitions() error {
	switch {
	case c.Partitions == nil && c.StartOffset == None:
		return errors.New("option StartOffset = none: must be first or last unless option Partitions is set")
	case c.Partitions != nil && len(c.Partitions) == 0:
		return errors.New("option Partitions is empty: must have at least one partition, or be nil for all")
	}
	var all []error
	seen := map[int]bool{}
	for _, id := range c.Partitions {
		switch {
		case id < 0 || id > math.MaxInt32:
			all = append(all, fmt.Errorf("option Partitions has %d: must be 0 to %d", id, math.MaxInt32))
		case seen[id]:
			all = append(all, fmt.Errorf("option Partitions has %d twice", id))
		}
		seen[id] = true
	}
	return errors.Join(all...)
}

func (c Config) validateNames() error {
	all := []error{kafkaclient.CheckName("GroupID", c.GroupID)}
	if c.StartOffset != First && c.StartOffset != Last && c.StartOffset != None {
		all = append(all, fmt.Errorf("option StartOffset = %q: must be %s, %s or %s", c.StartOffset, First, Last, None))
	}
	if c.Isolation != ReadCommitted && c.Isolation != ReadUncommitted {
		all = append(all, fmt.Errorf("option Isolation = %q: must be %s or %s", c.Isolation, ReadCommitted, ReadUncommitted))
	}
	return errors.Join(all...)
}

// String returns the mechanism and the user name, never the password.
func (s SASL) String() string {
	switch {
	case s.Mechanism == "" && s.Custom == nil:
		return "none"
	case s.Mechanism == "":
		return s.Custom.Name()
	case s.Username == "":
		return s.Mechanism
	default:
		return s.Mechanism + " as " + s.Username
	}
}

// Format writes String for every verb. So printing a SASL, or a struct with one in an exported field such as Config,
// does not show the password. For an unexported field package fmt does not call Format and prints everything.
func (s SASL) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, s.String()) // the caller sees the writer's errors itself
}

// MarshalText returns String, for JSON, YAML and structured logs.
func (s SASL) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// withoutSecrets returns the part that may stay in memory that could be printed.
func (s SASL) withoutSecrets() SASL { return SASL(kafkaclient.SASL(s).WithoutSecrets()) }

func (c Config) validateRanges() error {
	var all []error
	const protocolLimit = math.MaxInt32 // of Kafka's 32-bit fields
	for _, f := range []struct {
		name       string
		value, max int
	}{
		{"BatchRecords", c.BatchRecords, 1_000_000},
		{"BatchBytes", c.BatchBytes, 1 << 30},
		{"AcceptConcurrency", c.AcceptConcurrency, 1000},
		{"BufferBytes", c.BufferBytes, math.MaxInt},
		{"MaxBatchBytes", c.MaxBatchBytes, 1 << 30},
		{"FetchMaxBytes", c.FetchMaxBytes, protocolLimit},
	} {
		if f.value < 1 || f.value > f.max {
			all = append(all, fmt.Errorf("option %s = %d: must be 1 to %d", f.name, f.value, f.max))
		}
	}
	for _, f := range []struct {
		name       string
		value, min time.Duration
	}{
		{"Linger", c.Linger, 1},
		{"CommitInterval", c.CommitInterval, time.Millisecond},
		{"SessionTimeout", c.SessionTimeout, time.Millisecond},
		{"HeartbeatInterval", c.HeartbeatInterval, time.Millisecond},
		{"RebalanceTimeout", c.RebalanceTimeout, time.Millisecond},
		{"DrainTimeout", c.DrainTimeout, time.Millisecond},
		{"WatchInterval", c.WatchInterval, time.Millisecond},
		{"ProgressTimeout", c.ProgressTimeout, time.Millisecond},
		{"FetchMaxWait", c.FetchMaxWait, time.Millisecond},
	} {
		all = append(all, kafkaclient.CheckDuration(f.name, f.value, f.min))
	}
	for _, f := range []struct {
		name         string
		value, limit time.Duration
		allowed      string
	}{
		{"HeartbeatInterval", c.HeartbeatInterval, (c.SessionTimeout + 2) / 3,
			fmt.Sprintf("less than a third of SessionTimeout (%s)", c.SessionTimeout)},
		{"DrainTimeout", c.DrainTimeout, c.RebalanceTimeout,
			fmt.Sprintf("less than RebalanceTimeout (%s)", c.RebalanceTimeout)},
		{"FetchMaxWait", c.FetchMaxWait, c.SessionTimeout, fmt.Sprintf("less than SessionTimeout (%s)", c.SessionTimeout)},
	} {
		if f.value >= f.limit {
			all = append(all, fmt.Errorf("option %s = %s: must be %s", f.name, f.value, f.allowed))
		}
	}
	return errors.Join(all...)
}
