package kafkaconsumer

import (
	"fmt"
	"io"
)

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

// Format writes String whatever the verb. So printing a SASL, or a struct with one in an exported
// field such as Config, does not show the password. For an unexported field package fmt does not
// call Format and prints everything.
func (s SASL) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, s.String()) // the caller sees the writer's errors itself
}

// MarshalText returns String, for JSON, YAML and structured logs.
func (s SASL) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// withoutSecrets returns what may stay in memory that could be printed: fmt does not call the
// methods of unexported fields.
func (s SASL) withoutSecrets() SASL {
	if s.Custom != nil {
		return SASL{Mechanism: s.Custom.Name(), AllowWithoutTLS: s.AllowWithoutTLS}
	}
	return SASL{Mechanism: s.Mechanism, Username: s.Username, AllowWithoutTLS: s.AllowWithoutTLS}
}
