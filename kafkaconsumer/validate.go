package kafkaconsumer

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// Validate joins an error for every field that is out of range. Each one names the field, its value
// and what is allowed. Fields that are zero count as their default.
func (c Config) Validate() error {
	c = c.withDefaults()
	return errors.Join(c.validateBrokers(), c.validateTopics(), c.validateNames(), c.validateSASL(), c.validateRanges(),
		c.Decoder.Validate())
}

func (c Config) validateBrokers() error {
	if len(c.Brokers) == 0 {
		return errors.New("option Brokers is empty: must have at least one host:port")
	}
	var all []error
	for _, broker := range c.Brokers {
		host, port, err := net.SplitHostPort(broker)
		if err == nil && (host == "" || strings.ContainsAny(host, " \t\r\n,/@")) {
			err = errors.New("bad host")
		}
		if err == nil {
			var number uint64
			if number, err = strconv.ParseUint(port, 10, 16); err == nil && number == 0 {
				err = errors.New("bad port")
			}
		}
		if err != nil {
			all = append(all, fmt.Errorf("option Brokers has %q: must be host:port with a port of 1 to 65535",
				withoutUser(broker)))
		}
	}
	return errors.Join(all...)
}

// withoutUser hides what precedes an @, where users put passwords.
func withoutUser(broker string) string {
	if at := strings.LastIndex(broker, "@"); at >= 0 {
		return "…" + broker[at:]
	}
	return broker
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
		case !validTopic(topic):
			all = append(all, fmt.Errorf("option Topics has %q: must be 1 to 249 letters, digits, '.', '_' and '-'", topic))
		}
		seen[topic] = true
	}
	switch deadLetter := c.DeadLetterTopic; {
	case deadLetter == "" && c.PublishPoisoned:
		all = append(all, errors.New("option DeadLetterTopic is empty: must be a topic with PublishPoisoned"))
	case deadLetter == "":
	case !validTopic(deadLetter):
		all = append(all, fmt.Errorf("option DeadLetterTopic = %q: must be 1 to 249 letters, digits, '.', '_' and '-'",
			deadLetter))
	case seen[deadLetter]:
		all = append(all, fmt.Errorf("option DeadLetterTopic = %q: must be a topic that is not one of Topics", deadLetter))
	}
	return errors.Join(all...)
}

func validTopic(topic string) bool {
	return topic != "" && len(topic) <= 249 && topic != "." && topic != ".." && strings.Trim(topic, topicCharacters) == ""
}

const topicCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

func (c Config) validateNames() error {
	var all []error
	for _, f := range []struct{ name, value string }{{"GroupID", c.GroupID}, {"ClientID", c.ClientID}} {
		if f.value == "" || len(f.value) > 255 || !utf8.ValidString(f.value) {
			all = append(all, fmt.Errorf("option %s = %q: must be 1 to 255 bytes of UTF-8", f.name, f.value))
		}
	}
	if c.StartOffset != First && c.StartOffset != Last {
		all = append(all, fmt.Errorf("option StartOffset = %q: must be %s or %s", c.StartOffset, First, Last))
	}
	if c.Isolation != ReadCommitted && c.Isolation != ReadUncommitted {
		all = append(all, fmt.Errorf("option Isolation = %q: must be %s or %s", c.Isolation, ReadCommitted,
			ReadUncommitted))
	}
	return errors.Join(all...)
}

func (c Config) validateSASL() error {
	mechanism, err := c.SASL.mechanism()
	if err == nil && mechanism != nil && mechanism.Name() == "PLAIN" && c.TLS == nil && !c.SASL.AllowWithoutTLS {
		err = errors.New("option SASL mechanism is PLAIN without TLS, which sends the password as it is: " +
			"set TLS, or SASL.AllowWithoutTLS if that is meant")
	}
	return err
}

// mechanism returns what kafka-go authenticates with, nil without SASL.
func (s SASL) mechanism() (sasl.Mechanism, error) {
	if s.Mechanism == "" {
		if s.Username != "" || s.Password != "" {
			return nil,
				errors.New("option SASL has a username or password but no mechanism: set PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
		}
		if s.Custom == nil {
			return nil, nil
		}
		return customSASL{s.Custom}, nil
	}
	if s.Custom != nil {
		return nil, fmt.Errorf("option SASL has both mechanism %q and a custom one: set one of them", s.Mechanism)
	}
	if s.Username == "" {
		return nil, fmt.Errorf("option SASL mechanism %s has an empty username: set one", s.Mechanism)
	}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Mechanism{Username: s.Username, Password: s.Password}, nil
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
		algorithm := scram.SHA256
		if s.Mechanism == "SCRAM-SHA-512" {
			algorithm = scram.SHA512
		}
		mechanism, err := scram.Mechanism(algorithm, s.Username, s.Password)
		if err != nil {
			// Omit the error itself: it quotes the text it refuses, which may be the password.
			return nil,
				fmt.Errorf("option SASL username or password cannot be used with %s: must have no characters that SASLprep (RFC 4013) prohibits", s.Mechanism)
		}
		return boundedSCRAM{mechanism}, nil
	default:
		return nil, fmt.Errorf("option SASL mechanism = %q: must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", s.Mechanism)
	}
}

func (c Config) validateRanges() error {
	var all []error
	const protocolLimit = math.MaxInt32 // of Kafka's 32-bit fields
	for _, f := range []struct {
		name  string
		value int
		max   int
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
		{"DialTimeout", c.DialTimeout, time.Millisecond},
		{"RequestTimeout", c.RequestTimeout, time.Millisecond},
	} {
		if f.value < f.min || f.value > time.Hour {
			all = append(all, fmt.Errorf("option %s = %s: must be %s to %s", f.name, f.value, f.min, time.Hour))
		}
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
