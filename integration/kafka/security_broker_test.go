package kafka

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// The listeners of a secured broker, besides the plain one.
const (
	tlsListener       = "TLS"     // TLS without authentication
	mutualTLSListener = "MUTUAL"  // TLS with a client certificate of the authority
	saslTLSListener   = "SASLTLS" // PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, over TLS
	saslListener      = "SASL"    // SCRAM-SHA-256 and SCRAM-SHA-512, without TLS
	shortListener     = "SHORT"   // like saslListener, but sessions end after shortSession
)

// shortSession is how long a session on shortListener lasts. A client must authenticate again or is
// disconnected.
const shortSession = 2 * time.Second

// plainUser and plainPassword are the only login for PLAIN, whose users are part of the settings.
// Users for SCRAM are created and changed by requests.
const (
	plainUser     = "plain-user"
	plainPassword = "plain-password"
)

// secured is a real broker with TLS, SASL and ACLs. Its plain listener allows tests everything.
type secured struct {
	*servers.Kafka
	authority *authority
}

func startSecured(t *testing.T) secured {
	t.Helper()
	began := time.Now()
	a := newAuthority(t)
	k, err := servers.StartKafka(servers.KafkaOptions{
		Listeners: map[string]string{tlsListener: "SSL", mutualTLSListener: "SSL", saslTLSListener: "SASL_SSL",
			saslListener: "SASL_PLAINTEXT", shortListener: "SASL_PLAINTEXT"},
		Settings: securitySettings(t, a),
	})
	testenv.LeaveOutIf(t, err)
	t.Logf("the broker started within %s", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() { require.NoError(t, k.Close()) })
	return secured{k, a}
}

// securitySettings are the broker's settings for its listeners. Clients of the plain listener may
// do everything. All others need ACLs.
func securitySettings(t *testing.T, a *authority) map[string]string {
	const (
		scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		plain = "org.apache.kafka.common.security.plain.PlainLoginModule required user_" + plainUser + `="` + plainPassword +
			`";`
	)
	oneLine := func(pem []byte) string { return strings.ReplaceAll(string(pem), "\n", `\n`) }
	chain, key := a.issue(t, "broker", x509.ExtKeyUsageServerAuth)
	settings := map[string]string{
		"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": oneLine(chain), "ssl.keystore.key": oneLine(key),
		"ssl.truststore.type": "PEM", "ssl.truststore.certificates": oneLine(a.pem),
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":           "User:ANONYMOUS", // brokers, controllers and clients of the plain listener
	}
	of := func(listener, name string) string { return "listener.name." + strings.ToLower(listener) + "." + name }
	for _, listener := range []string{saslTLSListener, saslListener, shortListener} {
		settings[of(listener, "sasl.enabled.mechanisms")] = "SCRAM-SHA-256,SCRAM-SHA-512"
		settings[of(listener, "scram-sha-256.sasl.jaas.config")] = scram
		settings[of(listener, "scram-sha-512.sasl.jaas.config")] = scram
	}
	settings[of(saslTLSListener, "sasl.enabled.mechanisms")] += ",PLAIN"
	settings[of(saslTLSListener, "plain.sasl.jaas.config")] = plain
	settings[of(shortListener, "connections.max.reauth.ms")] = fmt.Sprint(shortSession.Milliseconds())
	settings[of(mutualTLSListener, "ssl.client.auth")] = "required"
	return settings
}

// authority issues certificates for one test run.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// newAuthority creates an authority that no client trusts yet.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := certificateTemplate("inbox test authority")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{certificate, key, encodePEM("CERTIFICATE", der)}
}

// trust returns a configuration for clients that trust only this authority.
func (a *authority) trust() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return &tls.Config{RootCAs: pool}
}

// pair issues a certificate for a client of this name or for a server on this machine.
func (a *authority) pair(t *testing.T, name string, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(a.issue(t, name, usage))
	require.NoError(t, err)
	return pair
}

// issue returns a certificate and its key as PEM. A server's certificate is valid for all names of
// this machine.
func (a *authority) issue(t *testing.T, name string, usage x509.ExtKeyUsage) (chain, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := certificateTemplate(name)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}
	if usage == x509.ExtKeyUsageServerAuth {
		template.DNSNames, template.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return encodePEM("CERTIFICATE", der), encodePEM("PRIVATE KEY", pkcs8)
}

// certificateTemplate returns a certificate that is valid for the length of a test run, and for the
// day before because of machines whose clocks differ.
func certificateTemplate(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // never fails
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
