package kafkapublisher

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/kafkaclient"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// Format is how a message becomes a record. Its content is the record's value in each format.
type Format string

// The values of Format.
const (
	// CloudEvents is the binary mode of CloudEvents 1.0: ID, type, source, time and attributes are headers that begin
	// with "ce_", and "content-type" is a header.
	CloudEvents Format = "cloudevents"
	// Headers has the ID in the header "MessageId" and the type in "MessageType", where an Inbox channel looks for them
	// by default. Source, attributes and the time of the event are not published: do not use it where receivers need them.
	Headers Format = "headers"
)

// Config configures a Publisher. Brokers and Topic are required. Every other field that is left zero gets its default.
type Config struct {
	// Brokers are the first addresses to ask (host:port). One that answers is enough. Name several: the other brokers of
	// a cluster are only found while one of these answers.
	Brokers []string `yaml:"brokers" env:"BROKERS"`
	// Topic receives the messages. It must exist and is never created: while it is missing, messages wait. Do not add
	// partitions while the order of a key matters: its later messages may go to another partition.
	Topic string `yaml:"topic" env:"TOPIC"`
	// ClientID names this process to the brokers. Default "inbox".
	ClientID string `yaml:"client_id" env:"CLIENT_ID"`
	// TLS encrypts all connections. Nil means no encryption. An empty ServerName means the host that is connected to.
	// Do not set InsecureSkipVerify outside of tests: anyone could then impersonate the broker.
	TLS *tls.Config `yaml:"-" env:"-"`
	// SASL authenticates all connections, as in a consumer. The user needs the right WRITE on Topic. Default none.
	SASL kafkaconsumer.SASL `yaml:"sasl" env:"SASL"`
	// Dial opens all connections, under the rules of kafkaconsumer.Config.Dial. Nil means a net.Dialer. Do not set it to
	// encrypt: TLS also checks who answers.
	Dial func(ctx context.Context, network, address string) (net.Conn, error) `yaml:"-" env:"-"`
	// DialTimeout bounds opening a connection, RequestTimeout a request until all replicas have it. Default 5 s each.
	DialTimeout    time.Duration `yaml:"dial_timeout" env:"DIAL_TIMEOUT"`
	RequestTimeout time.Duration `yaml:"request_timeout" env:"REQUEST_TIMEOUT"`
	// MaxRequestBytes bounds the records of one request. A larger message goes alone. Default 1,000,000: brokers refuse
	// more than 1 MiB (message.max.bytes) unless configured otherwise. Do not set it above the topic's max.message.bytes:
	// refused records are sent again one by one.
	MaxRequestBytes int `yaml:"max_request_bytes" env:"MAX_REQUEST_BYTES"`
	// Format is how a message becomes a record: CloudEvents or Headers. Default CloudEvents.
	Format Format `yaml:"format" env:"FORMAT"`
	// Source is the CloudEvents source of messages that have none, a URI reference. Default "/{channel}". Do not change
	// it where receivers compare it.
	Source string `yaml:"source" env:"SOURCE"`
}

// DefaultConfig returns the defaults. Brokers and Topic remain to be set.
func DefaultConfig() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	c.ClientID = cmp.Or(c.ClientID, "inbox")
	c.DialTimeout, c.RequestTimeout = cmp.Or(c.DialTimeout, 5*time.Second), cmp.Or(c.RequestTimeout, 5*time.Second)
	c.MaxRequestBytes = cmp.Or(c.MaxRequestBytes, 1_000_000)
	c.Format = cmp.Or(c.Format, CloudEvents)
	return c
}

// Validate joins an error for every field that is out of range. Each one names the field, its value and what is
// allowed, and none shows a password. Fields that are zero count as their default.
func (c Config) Validate() error {
	c = c.withDefaults()
	all := []error{c.client().Validate()}
	if !kafkaclient.ValidTopic(c.Topic) {
		all = append(all, fmt.Errorf("option Topic = %q: must be 1 to 249 letters, digits, '.', '_' and '-'", c.Topic))
	}
	if n := c.MaxRequestBytes; n < 1 || n > 1<<30 {
		all = append(all, fmt.Errorf("option MaxRequestBytes = %d: must be 1 to %d", n, 1<<30))
	}
	if c.Format != CloudEvents && c.Format != Headers {
		all = append(all, fmt.Errorf("option Format = %q: must be %s or %s", c.Format, CloudEvents, Headers))
	}
	if _, err := url.Parse(c.Source); err != nil || !utf8.ValidString(c.Source) || strings.ContainsRune(c.Source, ' ') ||
		utf8.RuneCountInString(c.Source) > columns.MaxSource {
		all = append(all, fmt.Errorf("option Source = %q: must be a URI reference of at most %d characters", c.Source,
			columns.MaxSource))
	}
	return errors.Join(all...)
}

// client returns what of the config says how to connect.
func (c Config) client() kafkaclient.Config {
	return kafkaclient.Config{Brokers: c.Brokers, Topics: []string{c.Topic}, ClientID: c.ClientID, TLS: c.TLS,
		SASL: kafkaclient.SASL(c.SASL), Dial: c.Dial, DialTimeout: c.DialTimeout, RequestTimeout: c.RequestTimeout}
}
