package kafkaconsumer_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func TestPasswordsAreNeverPrinted(t *testing.T) {
	const secret = "pa55word"
	named, own := valid(), valid()
	named.TLS, own.TLS = &tls.Config{}, &tls.Config{}
	named.SASL = kafkaconsumer.SASL{Mechanism: "PLAIN", Username: "billing", Password: secret}
	own.SASL = kafkaconsumer.SASL{Custom: plain.Mechanism{Username: "billing", Password: secret}}
	for _, cfg := range []kafkaconsumer.Config{named, own} {
		c, err := kafkaconsumer.New("orders.events", cfg, acceptor{}, nil, nil)
		require.NoError(t, err)
		for _, value := range []any{cfg, &cfg, cfg.SASL, &cfg.SASL, []kafkaconsumer.Config{cfg}, map[string]any{"kafka": cfg},
			c, c.Health()} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
				text := fmt.Sprintf(verb, value)
				require.NotContains(t, text, secret, "%T by %s", value, verb)
				require.NotContains(t, text, fmt.Sprintf("%x", secret), "%T by %s", value, verb)
			}
		}
		core, logs := observer.New(zapcore.DebugLevel)
		zap.New(core).Info("settings", zap.Any("sasl", cfg.SASL), zap.Stringer("text", cfg.SASL))
		require.NotContains(t, fmt.Sprint(logs.All()[0].ContextMap()), secret)
		text, err := json.Marshal(cfg.SASL)
		require.NoError(t, err)
		require.NotContains(t, string(text), secret)
	}
	require.Contains(t, fmt.Sprintf("%+v", named), "PLAIN as billing", "what is no secret is said")
	require.Contains(t, fmt.Sprintf("%+v", own), "PLAIN")
}

func TestConfigErrorsShowNoPassword(t *testing.T) {
	const secret = "pa55word"
	for name, change := range map[string]func(*kafkaconsumer.Config){
		"a password that SCRAM cannot use": func(c *kafkaconsumer.Config) {
			c.SASL = kafkaconsumer.SASL{Mechanism: "SCRAM-SHA-512", Username: "billing", Password: secret + "\x00"}
		},
		"a broker with a user": func(c *kafkaconsumer.Config) { c.Brokers = []string{"billing:" + secret + "@kafka:9092"} },
		"a broker as a URL": func(c *kafkaconsumer.Config) {
			c.Brokers = []string{"sasl://billing:" + secret +
				"@kafka:9092"}
		},
		"a user alone": func(c *kafkaconsumer.Config) { c.Brokers = []string{secret + "@kafka:9092"} },
		"no mechanism": func(c *kafkaconsumer.Config) {
			c.SASL = kafkaconsumer.SASL{Username: "billing", Password: secret}
		},
		"no username": func(c *kafkaconsumer.Config) {
			c.SASL = kafkaconsumer.SASL{Mechanism: "PLAIN", Password: secret}
		},
		"PLAIN without TLS": func(c *kafkaconsumer.Config) {
			c.SASL = kafkaconsumer.SASL{Mechanism: "PLAIN", Username: "billing", Password: secret}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := valid()
			change(&cfg)
			err := cfg.Validate()
			require.Error(t, err)
			require.NotContains(t, err.Error(), secret)
		})
	}
}

func TestDangerousSettingsAreLoggedAtStart(t *testing.T) {
	login := kafkaconsumer.SASL{Mechanism: "PLAIN", Username: "billing", Password: "pa55word"}
	allowed, scram := login, login
	allowed.AllowWithoutTLS, scram.Mechanism = true, "SCRAM-SHA-256"
	own := kafkaconsumer.SASL{Custom: cloudLogin{}}
	verify := func([][]byte, [][]*x509.Certificate) error { return nil }
	for name, c := range map[string]struct {
		tls  *tls.Config
		sasl kafkaconsumer.SASL
		want string // "" for none
	}{
		"PLAIN allowed":            {nil, allowed, ""},
		"PLAIN with TLS":           {&tls.Config{}, login, ""},
		"SCRAM without TLS":        {nil, scram, "SASL.AllowWithoutTLS"},
		"SCRAM with TLS":           {&tls.Config{}, scram, ""},
		"another without TLS":      {nil, own, "SASL.AllowWithoutTLS"},
		"TLS that does not verify": {&tls.Config{InsecureSkipVerify: true}, login, "InsecureSkipVerify"},
		"TLS that verifies itself": {&tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: verify}, login, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := valid()
			cfg.Brokers, cfg.TLS, cfg.SASL = []string{"127.0.0.1:1"}, c.tls, c.sasl // no server listens there
			core, logs := observer.New(zapcore.WarnLevel)
			consumer, err := kafkaconsumer.New("orders.events", cfg, acceptor{}, zap.New(core), nil)
			require.NoError(t, err)
			require.NoError(t, consumer.Start(t.Context()))
			require.NoError(t, consumer.Stop(t.Context()))
			said := ""
			for _, entry := range logs.FilterMessageSnippet("inbox: TLS").All() {
				said += entry.Message
			}
			for _, entry := range logs.FilterMessageSnippet("inbox: SASL").All() {
				said += entry.Message
			}
			if c.want == "" {
				require.Empty(t, said)
			} else {
				require.Contains(t, said, c.want)
			}
		})
	}
}

// cloudLogin is a mechanism of a user's own.
type cloudLogin struct{ plain.Mechanism }

func (cloudLogin) Name() string { return "CLOUD" }

// TestPlainPasswordsNeedTLSOrAnExplicitOption proves contract 7.5.
func TestPlainPasswordsNeedTLSOrAnExplicitOption(t *testing.T) {
	for name, login := range map[string]kafkaconsumer.SASL{
		"by name":   {Mechanism: "PLAIN", Username: "billing", Password: "pa55word"},
		"by custom": {Custom: plain.Mechanism{Username: "billing", Password: "pa55word"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := valid()
			cfg.SASL = login
			_, err := kafkaconsumer.New("orders.events", cfg, acceptor{}, nil, nil)
			require.ErrorContains(t, err, "SASL mechanism is PLAIN without TLS")
			require.ErrorContains(t, err, "SASL.AllowWithoutTLS")
			cfg.TLS = &tls.Config{}
			require.NoError(t, cfg.Validate())
			cfg.TLS, cfg.SASL.AllowWithoutTLS = nil, true
			require.NoError(t, cfg.Validate())
		})
	}
}
