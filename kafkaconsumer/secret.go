package kafkaconsumer

import (
	"fmt"
	"io"
)

// String says how and as whom, never with which password.
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

// Format writes String whatever the verb, so that printing a SASL, or what holds
// it in exported fields, as Config does, does not show the password. In an
// unexported field package fmt does not call it, and shows all.
func (s SASL) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, s.String()) // whoever prints learns of his own errors
}

// MarshalText is String, for JSON, YAML and structured logs.
func (s SASL) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// withoutSecrets is what may stay in memory that somebody prints: fmt does not
// ask unexported fields how they want to be shown.
func (s SASL) withoutSecrets() SASL {
	if s.Custom != nil {
		return SASL{Mechanism: s.Custom.Name(), AllowWithoutTLS: s.AllowWithoutTLS}
	}
	return SASL{Mechanism: s.Mechanism, Username: s.Username, AllowWithoutTLS: s.AllowWithoutTLS}
}
