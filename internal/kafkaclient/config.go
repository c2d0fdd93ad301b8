package kafkaclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"
)

// Config configures a Client. Its fields are those of the public configs of the same names, which have the defaults.
type Config struct {
	Brokers []string
	// Topics are those whose metadata is refreshed.
	Topics      []string
	ClientID    string
	TLS         *tls.Config
	SASL        SASL
	Dial        func(ctx context.Context, network, address string) (net.Conn, error)
	DialTimeout time.Duration
	// RequestTimeout bounds the response to a request.
	RequestTimeout time.Duration
}

// Validate joins an error for every field that is out of range, but for Topics. Each one names the option, its value
// and what is allowed. No value panics.
func (c Config) Validate() error {
	return errors.Join(c.validateBrokers(), CheckName("ClientID", c.ClientID), c.SASL.validate(c.TLS),
		CheckDuration("DialTimeout", c.DialTimeout, time.Millisecond),
		CheckDuration("RequestTimeout", c.RequestTimeout, time.Millisecond))
}

// Warn logs settings that are allowed and dangerous. SASL must be without secrets.
func (c Config) Warn(log *zap.Logger) {
	switch {
	case c.TLS != nil && c.TLS.InsecureSkipVerify && c.TLS.VerifyPeerCertificate == nil && c.TLS.VerifyConnection == nil:
		log.Warn("inbox: TLS.InsecureSkipVerify is set, any server can pose as the broker")
	case c.TLS == nil && c.SASL.Mechanism != "" && !c.SASL.AllowWithoutTLS:
		log.Warn("inbox: SASL is used without TLS: who is on the way to the broker can read the messages, act as this client, " +
			"and guess its password without the broker; set TLS, or SASL.AllowWithoutTLS if that is meant")
	}
}

func (c Config) validateBrokers() error {
	if len(c.Brokers) == 0 {
		return errors.New("option Brokers is empty: must have at least one host:port")
	}
	var all []error
	for _, broker := range c.Brokers {
		host, port, err := net.SplitHostPort(broker)
		number, portErr := strconv.ParseUint(port, 10, 16)
		if err != nil || host == "" || strings.ContainsAny(host, " \t\r\n,/@") || portErr != nil || number == 0 {
			all = append(all, fmt.Errorf("option Brokers has %q: must be host:port with a port of 1 to 65535",
				withoutUser(broker)))
		}
	}
	return errors.Join(all...)
}

// withoutUser hides the text before an @, where users put passwords.
func withoutUser(broker string) string {
	if at := strings.LastIndex(broker, "@"); at >= 0 {
		return "…" + broker[at:]
	}
	return broker
}

// CheckName returns an error if the value of an option cannot be a name in Kafka's protocol.
func CheckName(option, value string) error {
	if value == "" || len(value) > 255 || !utf8.ValidString(value) {
		return fmt.Errorf("option %s = %q: must be 1 to 255 bytes of UTF-8", option, value)
	}
	return nil
}

// CheckDuration returns an error if the value of an option is below least or above an hour.
func CheckDuration(option string, value, least time.Duration) error {
	if value < least || value > time.Hour {
		return fmt.Errorf("option %s = %s: must be %s to %s", option, value, least, time.Hour)
	}
	return nil
}

// ValidTopic reports whether Kafka allows a topic of this name.
func ValidTopic(topic string) bool {
	return topic != "" && len(topic) <= 249 && topic != "." && topic != ".." && strings.Trim(topic, topicCharacters) == ""
}

const topicCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
