package servers

import (
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Listener is a listener of a secured broker, by its name in the settings.
type Listener string

// The listeners of a secured broker, besides the plain one.
const (
	// TLSListener requires TLS but no authentication.
	TLSListener Listener = "TLS"
	// MutualTLSListener requires a client certificate of the authority.
	MutualTLSListener Listener = "MUTUAL"
	// SASLTLSListener accepts PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, over TLS.
	SASLTLSListener Listener = "SASLTLS"
	// SASLListener accepts SCRAM-SHA-256 and SCRAM-SHA-512, without TLS.
	SASLListener Listener = "SASL"
	// ShortSessionListener is a SASLListener whose sessions end after ShortSession. A client must
	// authenticate again or is disconnected.
	ShortSessionListener Listener = "SHORT"
)

// ShortSession is how long a session on ShortSessionListener lasts, in
// milliseconds.
const ShortSession = 2000

// PlainUser and PlainPassword are the only login for PLAIN, whose users are part of the settings.
// Users for SCRAM are created and changed by requests.
const (
	PlainUser     = "plain-user"
	PlainPassword = "plain-password"
)

var listeners = map[Listener]string{ // and their protocols
	TLSListener: "SSL", MutualTLSListener: "SSL", SASLTLSListener: "SASL_SSL", SASLListener: "SASL_PLAINTEXT", ShortSessionListener: "SASL_PLAINTEXT",
}

// secured is the additional state of a secured broker.
type secured struct {
	authority  *Authority
	chain, key []byte // the broker's
	ports      map[Listener]int
}

func newSecured() (*secured, error) {
	authority, err := NewAuthority()
	if err != nil {
		return nil, err
	}
	s := &secured{authority: authority}
	s.chain, s.key, err = authority.issue("broker", x509.ExtKeyUsageServerAuth)
	return s, err
}

// takePorts assigns a new port to every listener.
func (s *secured) takePorts() error {
	if s == nil {
		return nil
	}
	s.ports = map[Listener]int{}
	for listener := range listeners {
		port, err := freePort()
		if err != nil {
			return err
		}
		s.ports[listener] = port
	}
	return nil
}

// Listener returns the bootstrap list of a secured broker for this listener.
func (k *Kafka) Listener(l Listener) []string { return []string{address(k.secured.ports[l])} }

// Authority returns the authority that issued the certificate of a secured broker, and that issues
// certificates for its clients.
func (k *Kafka) Authority() *Authority { return k.secured.authority }

// ports returns all ports that clients connect to.
func (k *Kafka) ports() []int {
	ports := []int{k.port}
	if k.secured != nil {
		ports = slices.AppendSeq(ports, maps.Values(k.secured.ports))
	}
	return ports
}

// add adds the listeners to a broker's settings. Certificates are part of the settings and not
// files, because the broker may use another file system. Clients of the plain listener may do
// everything. All others need ACLs.
func (s *secured) add(settings map[string]string, bind string) {
	if s == nil {
		return
	}
	for listener, protocol := range listeners {
		settings["listeners"] += fmt.Sprintf(",%s://%s:%d", listener, bind, s.ports[listener])
		settings["advertised.listeners"] += fmt.Sprintf(",%s://%s", listener, address(s.ports[listener]))
		settings["listener.security.protocol.map"] += fmt.Sprintf(",%s:%s", listener, protocol)
	}
	const (
		scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		plain = "org.apache.kafka.common.security.plain.PlainLoginModule required user_" + PlainUser + `="` + PlainPassword +
			`";`
	)
	of := func(listener Listener, name string) string {
		return "listener.name." + strings.ToLower(string(listener)) + "." + name
	}
	for _, listener := range []Listener{SASLTLSListener, SASLListener, ShortSessionListener} {
		settings[of(listener, "sasl.enabled.mechanisms")] = "SCRAM-SHA-256,SCRAM-SHA-512"
		settings[of(listener, "scram-sha-256.sasl.jaas.config")] = scram
		settings[of(listener, "scram-sha-512.sasl.jaas.config")] = scram
	}
	settings[of(SASLTLSListener, "sasl.enabled.mechanisms")] += ",PLAIN"
	settings[of(SASLTLSListener, "plain.sasl.jaas.config")] = plain
	settings[of(ShortSessionListener, "connections.max.reauth.ms")] = fmt.Sprint(ShortSession)
	settings[of(MutualTLSListener, "ssl.client.auth")] = "required"

	settings["ssl.keystore.type"], settings["ssl.truststore.type"] = "PEM", "PEM"
	settings["ssl.keystore.certificate.chain"] = oneLine(s.chain)
	settings["ssl.keystore.key"] = oneLine(s.key)
	settings["ssl.truststore.certificates"] = oneLine(s.authority.pem)

	settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
	settings["super.users"] = "User:ANONYMOUS" // brokers, controllers and clients of the plain listener
}

// oneLine returns PEM as a value for a properties file.
func oneLine(pem []byte) string { return strings.ReplaceAll(string(pem), "\n", `\n`) }
