package kafkaconsumer

import (
	"crypto/tls"
	"time"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/gorm-inbox/inbox/envelope"
)

// StartOffset says where a group begins on a partition it has no committed
// offset for.
type StartOffset string

// Where a group may begin.
const (
	// First reads everything the partition holds.
	First StartOffset = "first"
	// Last reads what comes from now on, and is for new groups: those without a
	// committed offset on any partition of their topics. The group's leader
	// then commits the ends of all partitions in one request, before a member
	// reads any, so that a restart before the first record loses nothing. With
	// ReadCommitted the end is before transactions that are open. Whatever has
	// no committed offset later is read from its first record: partitions that
	// are added, topics that appear or are added to the config. So is a topic of
	// a new group that its leader has found missing before. All members must
	// say Last: they wait for a leader that does not.
	// A group whose offsets have expired on the brokers is new again.
	Last StartOffset = "last"
)

// Isolation says which records of transactions are seen.
type Isolation string

// The isolation levels of Kafka.
const (
	// ReadCommitted hides records of aborted and open transactions.
	ReadCommitted Isolation = "read_committed"
	// ReadUncommitted shows all records, also those that are rolled back.
	ReadUncommitted Isolation = "read_uncommitted"
)

// SASL says how to authenticate (contract 7.5). The zero value does not. Errors,
// logs and Health of a Consumer never show the password, nor do package fmt,
// encoding/json and zap when given a SASL or a Config. What does not ask a value
// how it wants to be shown does: libraries that dump by reflection, and fmt for
// a SASL or Config in an unexported field of another struct. Do not print such.
type SASL struct {
	// Mechanism is "PLAIN", "SCRAM-SHA-256" or "SCRAM-SHA-512". Empty means
	// none, or Custom.
	Mechanism string `yaml:"mechanism" env:"MECHANISM"`
	Username  string `yaml:"username" env:"USERNAME"`
	Password  string `yaml:"password" env:"PASSWORD"`
	// Custom is a mechanism of kafka-go for everything else, such as a
	// cloud's own. Do not set it together with Mechanism.
	Custom sasl.Mechanism `yaml:"-" env:"-"`
	// AllowWithoutTLS allows a mechanism without TLS. Default false: PLAIN is then an
	// error, because it sends the password as it is, and every other mechanism is a
	// warning at start. Do not set it unless all who can see the network may know the
	// password and the messages.
	AllowWithoutTLS bool `yaml:"allow_without_tls" env:"ALLOW_WITHOUT_TLS"`
}

// Config configures a Consumer. Brokers, Topics and GroupID are required; a
// field left zero gets its default (contract 7.5, 9).
type Config struct {
	// Brokers are where to ask first (host:port); one that answers is enough.
	// Name several: the rest of a cluster is asked for only while one of them
	// answers (contract 7.8).
	Brokers []string `yaml:"brokers" env:"BROKERS"`
	// Topics are consumed together, and share their message IDs: a topic that
	// others may write to belongs in a channel of its own (contract 4.4). One that
	// does not exist is said, waited for and never created (contract 7.5).
	Topics []string `yaml:"topics" env:"TOPICS"`
	// GroupID names the consumer group. All its members must consume the
	// same topics: another channel needs another group, which the start checks.
	GroupID string `yaml:"group_id" env:"GROUP_ID"`
	// ClientID names this process to the brokers. Default "inbox".
	ClientID string `yaml:"client_id" env:"CLIENT_ID"`
	// TLS encrypts all connections; nil does not. Its ServerName, if empty, is
	// the host that is connected to. Certificates are what the client shows to
	// brokers that want one. Do not set InsecureSkipVerify outside of tests:
	// anybody could then play the broker, and learn a PLAIN password.
	TLS *tls.Config `yaml:"-" env:"-"`
	// SASL authenticates all connections. Default none.
	SASL SASL `yaml:"sasl" env:"SASL"`
	// StartOffset is where a new group begins. Default First. Do not use Last
	// where messages produced before the first start matter, nor where the
	// group may be without members for longer than brokers keep its offsets
	// (offsets.retention.minutes, 7 days by default).
	StartOffset StartOffset `yaml:"start_offset" env:"START_OFFSET"`
	// Isolation is the isolation level. Default ReadCommitted. Do not use
	// ReadUncommitted with transactional producers unless what they roll back
	// may be processed.
	Isolation Isolation `yaml:"isolation" env:"ISOLATION"`
	// Decoder says how records become messages.
	Decoder envelope.DecoderConfig `yaml:"decoder" env:"DECODER"`

	// BatchRecords, BatchBytes and Linger bound an accept: it takes what is
	// there up to the first two and waits for more no longer than Linger
	// (contract 7.2). Defaults 1,000, 4 MiB and 10 ms. Raising them gains
	// little: 500 records per transaction are as fast as any number.
	BatchRecords int           `yaml:"batch_records" env:"BATCH_RECORDS"`
	BatchBytes   int           `yaml:"batch_bytes" env:"BATCH_BYTES"`
	Linger       time.Duration `yaml:"linger" env:"LINGER"`
	// AcceptConcurrency is how many accepts may run at once, each for its
	// own partitions; each needs a database connection. Default 2. Do not
	// raise it above the number of partitions.
	AcceptConcurrency int `yaml:"accept_concurrency" env:"ACCEPT_CONCURRENCY"`
	// BufferBytes bounds what has been fetched and not yet accepted, of all
	// partitions together, as it is in memory: decompressed. While it is used
	// up nothing more is fetched, decompressed or decoded, but for one partition
	// at a time: it may exceed the bound by one response, one decompressed batch
	// (MaxBatchBytes at most), what decoding one record takes (a few times
	// Decoder.MaxRecordBytes) and four accepts (BatchBytes), so that what is
	// larger than the bound passes too. Default 64 MiB.
	BufferBytes int `yaml:"buffer_bytes" env:"BUFFER_BYTES"`
	// MaxBatchBytes bounds a record batch, compressed or not: a larger one
	// halts its partition, because a few bytes can decompress to any number.
	// Default 128 MiB, 1 GiB at most. Do not set it below what producers may
	// write before compression; a broker's message.max.bytes counts after it.
	MaxBatchBytes int `yaml:"max_batch_bytes" env:"MAX_BATCH_BYTES"`
	// CommitInterval is the least time between two commits; what is accepted
	// in between is committed together. Default 100 ms. Longer means more
	// redeliveries after a crash, not more throughput.
	CommitInterval time.Duration `yaml:"commit_interval" env:"COMMIT_INTERVAL"`

	// SessionTimeout is the silence after which the broker gives this
	// member's partitions away. Default 10 s; brokers allow 6 s to 30 m
	// unless configured otherwise. A crash costs as long.
	SessionTimeout time.Duration `yaml:"session_timeout" env:"SESSION_TIMEOUT"`
	// HeartbeatInterval is how often the member reports and learns of
	// rebalances. Default 1 s; less than a third of SessionTimeout.
	HeartbeatInterval time.Duration `yaml:"heartbeat_interval" env:"HEARTBEAT_INTERVAL"`
	// RebalanceTimeout is how long the broker waits for members to rejoin.
	// Default 30 s.
	RebalanceTimeout time.Duration `yaml:"rebalance_timeout" env:"REBALANCE_TIMEOUT"`
	// DrainTimeout is how long a running accept, or a record's handlers where
	// they run in place, may take once a rebalance or a stop begins; then it
	// is abandoned and its records are redelivered.
	// Default half of RebalanceTimeout, 15 s at most.
	DrainTimeout time.Duration `yaml:"drain_timeout" env:"DRAIN_TIMEOUT"`
	// JoinBackoff is the pause after a failed join. Default 1 s.
	JoinBackoff time.Duration `yaml:"join_backoff" env:"JOIN_BACKOFF"`
	// WatchInterval is how often topics are looked at for partitions that
	// were added and for missing ones that appeared. Default 10 s.
	// Also how often the lag of partitions that are not fetched is asked for.
	WatchInterval time.Duration `yaml:"watch_interval" env:"WATCH_INTERVAL"`
	// ProgressTimeout is how long a partition with something to read may make
	// no progress before Health and the log say so, where nothing else is said
	// to be wrong with it (contract 7.8); how long joining may take, too.
	// Default 2 m. Nothing is stopped by it. Do not set it shorter than a batch takes
	// to be accepted at its slowest, nor in Inline and Direct channels than a handler
	// and its retries may.
	ProgressTimeout time.Duration `yaml:"progress_timeout" env:"PROGRESS_TIMEOUT"`

	// FetchMaxWait is how long a broker holds a fetch for which it has nothing;
	// it answers at once when there is anything. Default 500 ms.
	FetchMaxWait time.Duration `yaml:"fetch_max_wait" env:"FETCH_MAX_WAIT"`
	// FetchMaxBytes bounds a response per partition, but for a first record
	// batch that is larger. Default 1 MiB.
	FetchMaxBytes int `yaml:"fetch_max_bytes" env:"FETCH_MAX_BYTES"`
	// DialTimeout bounds making a connection and RequestTimeout the answer to
	// a request. Defaults 5 s each.
	DialTimeout    time.Duration `yaml:"dial_timeout" env:"DIAL_TIMEOUT"`
	RequestTimeout time.Duration `yaml:"request_timeout" env:"REQUEST_TIMEOUT"`

	// DeadLetterTopic takes the bad records of an inbox with the policy
	// BadRecordDeadLetter, and is required with it (contract 7.4). It gets each
	// record as it was, with headers that say where it came from and why
	// (HeaderTopic and so on). It must exist, is never created, and must not be
	// one of Topics. While it cannot be written to, the partition waits before
	// the record, and so do, behind what is accepted already, the partitions
	// that share its accept worker (every AcceptConcurrency-th, all of them with
	// 1; in Direct channels none): raise AcceptConcurrency, or use
	// BadRecordStore, where that matters. A record that it refuses for good, as
	// too large, halts its partition alone: give it a larger max.message.bytes
	// than Topics have.
	DeadLetterTopic string `yaml:"dead_letter_topic" env:"DEAD_LETTER_TOPIC"`

	// OnDeadLetter is told of each record that the dead-letter topic has
	// acknowledged and of what is wrong with it, on goroutines of the consumer,
	// which it must not block. A crash can lose the call, and a redelivery
	// repeat it.
	OnDeadLetter func(record envelope.Record, reason error) `yaml:"-" env:"-"`
	// OnHalt is told of each partition that halts (contract 7.4), once per
	// halt and on a goroutine of the consumer, which it must not block. Use
	// it to end the application; for alerts, watch Health.
	OnHalt func(topic string, partition int, reason error) `yaml:"-" env:"-"`
}

// DefaultConfig returns the defaults of the contract; Brokers, Topics and
// GroupID are left to set.
func DefaultConfig() Config { return Config{}.withDefaults() }

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	orText(&c.ClientID, "inbox")
	orText(&c.StartOffset, First)
	orText(&c.Isolation, ReadCommitted)
	orNumber(&c.BatchRecords, 1000)
	orNumber(&c.BatchBytes, 4<<20)
	orNumber(&c.Linger, 10*time.Millisecond)
	orNumber(&c.AcceptConcurrency, 2)
	orNumber(&c.BufferBytes, 64<<20)
	orNumber(&c.MaxBatchBytes, 128<<20)
	orNumber(&c.CommitInterval, 100*time.Millisecond)
	orNumber(&c.SessionTimeout, 10*time.Second)
	orNumber(&c.HeartbeatInterval, time.Second)
	orNumber(&c.RebalanceTimeout, 30*time.Second)
	orNumber(&c.DrainTimeout, min(c.RebalanceTimeout/2, 15*time.Second))
	orNumber(&c.JoinBackoff, time.Second)
	orNumber(&c.WatchInterval, 10*time.Second)
	orNumber(&c.ProgressTimeout, 2*time.Minute)
	orNumber(&c.FetchMaxWait, 500*time.Millisecond)
	orNumber(&c.FetchMaxBytes, 1<<20)
	orNumber(&c.DialTimeout, 5*time.Second)
	orNumber(&c.RequestTimeout, 5*time.Second)
	return c
}

func orText[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

func orNumber[T ~int | ~int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}
