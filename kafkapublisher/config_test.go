package kafkapublisher_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gopkg.in/yaml.v3"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/kafkapublisher"
	"github.com/gorm-inbox/inbox/outgoing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func valid() kafkapublisher.Config {
	return kafkapublisher.Config{Brokers: []string{"127.0.0.1:1"}, Topic: "orders"}
}

func TestZeroFieldsGetDefaults(t *testing.T) {
	require.NoError(t, valid().Validate())
	c := kafkapublisher.DefaultConfig()
	require.Equal(t, kafkapublisher.Config{ClientID: "inbox", DialTimeout: 5 * time.Second, RequestTimeout: 5 * time.Second,
		MaxRequestBytes: 1_000_000, Format: kafkapublisher.CloudEvents}, c)
}

func TestConfigIsReadFromYAML(t *testing.T) {
	c := kafkapublisher.DefaultConfig()
	decoder := yaml.NewDecoder(strings.NewReader(`
brokers: [kafka-1:9093]
topic: orders.events
format: headers
max_request_bytes: 2000
request_timeout: 2s
sasl: {mechanism: SCRAM-SHA-512, username: billing}
`))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(&c))
	require.Equal(t, "orders.events", c.Topic)
	require.Equal(t, kafkapublisher.Headers, c.Format)
	require.Equal(t, 2*time.Second, c.RequestTimeout)
	require.NoError(t, c.Validate())
}

func TestConfigErrorsNameFieldValueAndAllowedValues(t *testing.T) {
	for want, change := range map[string]func(*kafkapublisher.Config){
		"option Brokers is empty: must have at least one host:port": func(c *kafkapublisher.Config) { c.Brokers = nil },
		`option Brokers has "kafka": must be host:port`: func(c *kafkapublisher.Config) {
			c.Brokers = []string{"kafka"}
		},
		`option Topic = "": must be 1 to 249`:                        func(c *kafkapublisher.Config) { c.Topic = "" },
		`option Topic = "a b": must be 1 to 249`:                     func(c *kafkapublisher.Config) { c.Topic = "a b" },
		`option ClientID = "\xff": must be 1 to 255 bytes of UTF-8`:  func(c *kafkapublisher.Config) { c.ClientID = "\xff" },
		"option DialTimeout = -1s: must be 1ms to 1h0m0s":            func(c *kafkapublisher.Config) { c.DialTimeout = -time.Second },
		"option RequestTimeout = 2h0m0s: must be 1ms to 1h0m0s":      func(c *kafkapublisher.Config) { c.RequestTimeout = 2 * time.Hour },
		"option MaxRequestBytes = -1: must be 1 to 1073741824":       func(c *kafkapublisher.Config) { c.MaxRequestBytes = -1 },
		`option Format = "json": must be cloudevents or headers`:     func(c *kafkapublisher.Config) { c.Format = "json" },
		`option Source = "a b": must be a URI reference of at most`:  func(c *kafkapublisher.Config) { c.Source = "a b" },
		`option Source = "://": must be a URI reference of at most`:  func(c *kafkapublisher.Config) { c.Source = "://" },
		`option Source = "\x00": must be a URI reference of at most`: func(c *kafkapublisher.Config) { c.Source = "\x00" },
		"option SASL mechanism is PLAIN without TLS": func(c *kafkapublisher.Config) {
			c.SASL = kafkaconsumer.SASL{Mechanism: "PLAIN", Username: "u", Password: "p"}
		},
	} {
		t.Run(want, func(t *testing.T) {
			c, both := valid(), valid()
			change(&c)
			require.ErrorContains(t, c.Validate(), want)
			_, err := kafkapublisher.New(c, nil, nil)
			require.ErrorContains(t, err, fmt.Sprintf("kafka publisher of topic %q: option", c.Topic))
			both.SASL.Username = "u"
			change(&both)
			if both.SASL.Mechanism == "" {
				require.ErrorContains(t, both.Validate(), want)
				require.ErrorContains(t, both.Validate(), "SASL has a username or password but no mechanism")
			}
		})
	}
}

func TestPasswordsAreNeverPrinted(t *testing.T) {
	const secret = "pa55word"
	named, own := valid(), valid()
	named.TLS, own.TLS = &tls.Config{}, &tls.Config{}
	named.SASL = kafkaconsumer.SASL{Mechanism: "PLAIN", Username: "billing", Password: secret}
	own.SASL = kafkaconsumer.SASL{Custom: plain.Mechanism{Username: "billing", Password: secret}}
	for _, cfg := range []kafkapublisher.Config{named, own} {
		p, err := kafkapublisher.New(cfg, nil, nil)
		require.NoError(t, err)
		defer p.Close()
		for _, value := range []any{cfg, &cfg, []kafkapublisher.Config{cfg}, map[string]any{"kafka": cfg}, p} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
				text := fmt.Sprintf(verb, value)
				require.NotContains(t, text, secret, "%T by %s", value, verb)
				require.NotContains(t, text, fmt.Sprintf("%x", secret), "%T by %s", value, verb)
			}
		}
		text, err := json.Marshal(cfg.SASL)
		require.NoError(t, err)
		require.NotContains(t, string(text), secret)
	}
}

func TestUnreachableBrokerFailsEachMessageAndNamesTopicAndBroker(t *testing.T) {
	p, err := kafkapublisher.New(valid(), nil, nil) // no server listens there
	require.NoError(t, err)
	defer p.Close()
	results := p.Publish(t.Context(), []outgoing.Message{{ID: "1"}, {ID: "2"}})
	require.Len(t, results, 2)
	for _, err := range results {
		require.ErrorContains(t, err, `topic "orders"`)
		require.ErrorContains(t, err, "127.0.0.1:1")
		var refused *outgoing.RefusedError
		require.NotErrorAs(t, err, &refused)
	}
}

func TestClosedPublisherFailsEachMessage(t *testing.T) {
	p, err := kafkapublisher.New(valid(), nil, nil)
	require.NoError(t, err)
	p.Close()
	p.Close()
	require.ErrorContains(t, p.Publish(t.Context(), make([]outgoing.Message, 1))[0], `topic "orders": the publisher is closed`)
}
