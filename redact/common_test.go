package redact_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/redact"
)

func common(text string) string {
	return string(redact.Common(redact.Value{Part: redact.PartError, Bytes: []byte(text)}))
}

// cards are test numbers of the networks.
var cards = []string{
	"4111111111111111", "4222222222222", "5555555555554444", "2223003122003222", "378282246310005", "30569309025904",
	"6011111111111117", "3530111333300000", "6200000000000005",
}

// Contract 11.6.
func TestCommonHidesCardNumbers(t *testing.T) {
	for _, c := range cards {
		written := []string{c}
		switch len(c) {
		case 16:
			for _, separator := range []string{" ", "-", "+", "%20", "\u00a0"} {
				written = append(written, strings.Join([]string{c[:4], c[4:8], c[8:12], c[12:]}, separator))
			}
		case 14, 15:
			written = append(written, c[:4]+" "+c[4:10]+" "+c[10:], c[:4]+"-"+c[4:10]+"-"+c[10:])
		}
		for _, w := range written {
			for _, around := range []string{
				"%", "card % was declined", "card=%", "card:%,", `{"number":"%"}`, `{"number":%}`,
				`{\"number\":\"%\"}`, "(%)", "%.", "pay_%", "order-%", "first\\n%",
				"card%3D%", "1 %", "% 12/27 123", "map[number:%]", "<number>%</number>", "é%é", "%\n",
				"declined: % and %",
			} {
				text := strings.ReplaceAll(strings.ReplaceAll(around, "%3D", "\x00"), "%", w)
				text = strings.ReplaceAll(text, "\x00", "%3D")
				redacted := common(text)
				require.NotContains(t, redacted, w, text)
				require.NotContains(t, redacted, c[len(c)-4:], text)
				require.Contains(t, redacted, redact.Mask, text)
			}
		}
	}
}

// Contract 11.6: fmt prints numbers of a decoded JSON document in this form.
func TestCommonHidesCardNumbersPrintedAsFloats(t *testing.T) {
	for _, c := range cards {
		n, err := strconv.ParseFloat(c, 64)
		require.NoError(t, err)
		text := fmt.Sprint(map[string]any{"amount": 4.5, "card": n})
		require.Contains(t, text, "e+", c)
		require.Equal(t, "map[amount:4.5 card:[redacted]]", common(text), text)
	}
}

// Contract 11.6.
func TestCommonHidesValuesNamedAsSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"Authorization: Bearer s3cr3t, status 401\nGET /":            "Authorization: [redacted]\nGET /",
		"authorization=s3cr3t":                                       "authorization=[redacted]",
		"Proxy-Authorization: Digest username=\"u\", nonce=\"s3cr\"": "Proxy-Authorization: [redacted]",
		"Cookie: a=\"s3cr\"; b=et\r\nHost: h":                        "Cookie: [redacted]\r\nHost: h",
		"Set-Cookie: id=s3cr3t; HttpOnly":                            "Set-Cookie: [redacted]",
		"map[Authorization:[Bearer s3cr3t] Accept:[*/*]]":            "map[Authorization:[redacted] Accept:[*/*]]",
		"{User:bob Password:s3cr3t Retries:3}":                       "{User:bob Password:[redacted] Retries:3}",
		"X-Api-Key: s3cr3t":                                          "X-Api-Key: [redacted]",
		"x_api_key=s3cr3t&page=2":                                    "x_api_key=[redacted]&page=2",
		"https://h/p?access_token=s3cr3t&page=2":                     "https://h/p?access_token=[redacted]&page=2",
		`{"password":"s3c\"r3t","user":"bob"}`:                       `{"password":"[redacted]","user":"bob"}`,
		`{"clientSecret" : "s3cr3t" }`:                               `{"clientSecret" : "[redacted]" }`,
		`{\"refresh_token\":\"s3c\\\"r3t\",\"n\":1}`:                 `{\"refresh_token\":\"[redacted]\",\"n\":1}`,
		`{"token":["s3","cr3t"],"n":1}`:                              `{"token":[redacted],"n":1}`,
		`{"credentials":{"a":"s3","b":{"c":"cr3t"}},"n":1}`:          `{"credentials":[redacted],"n":1}`,
		`{"password":"s3cr3t`:                                        `{"password":"[redacted]`,
		`{"cvv":123,"password":null}`:                                `{"cvv":[redacted],"password":null}`,
		"host=h password='s3 cr3t' user=u":                           "host=h password='[redacted]' user=u",
		"spring.datasource.password=s3cr3t":                          "spring.datasource.password=[redacted]",
		"PASSWD => s3cr3t":                                           "PASSWD => [redacted]",
		"<Password>s3 cr3t</Password><n>1</n>":                       "<Password>[redacted]</Password><n>1</n>",
		"<a:ApiKey>s3cr3t":                                           "<a:ApiKey>[redacted]",
		"sent Bearer abcdef0123456789 to h":                          "sent Bearer [redacted] to h",
		"basic dXNlcjpzM2NyM3Q=":                                     "basic [redacted]",
		"postgres://app:s3cr3t@db:5432/orders":                       "postgres://app:xxxxx@db:5432/orders",
		"redis://:s3cr3t@cache":                                      "redis://:xxxxx@cache",
		"4111111111111111-token=s3cr3t":                              "[redacted]-token=[redacted]",
		"jwt eyJhbGciOiJub25lIn0.eyJzdWIiOiJib2IifQ.c2lnbmF0dXJl!":   "jwt [redacted]!",
	} {
		require.Equal(t, want, common(text))
		require.Equal(t, want, common(want), "it is left alone once it is redacted")
	}
	for _, name := range []string{"Authorization", "authorization", "PROXY-AUTHORIZATION", "cookie", "Set-Cookie",
		"X-Api-Key", "x_api_key", "password", "DbPassword", "client-secret",
		"X-Amz-Security-Token", "sessionId", "pin", "card_pin", "dbPass", "x-functions-key"} {
		for _, part := range []redact.Part{redact.PartHeader, redact.PartAttribute} {
			require.Equal(t, redact.Mask, string(redact.Common(redact.Value{Part: part, Name: name, Bytes: []byte("s3cr3t")})),
				name)
		}
	}
}

// Contract 11.6: however a secret is written, nothing of it shows.
func TestCommonHidesSecretsInHostileTexts(t *testing.T) {
	for _, text := range []string{
		// flags and commands
		"exec: mysqldump --password s3cr3t --host db", "exec: mysqldump --password=s3cr3t",
		"run --db-password 's3cr3t x' now",
		"run -password s3cr3t", `argv ["--api-key","s3cr3t"]`, `argv ["--token", "s3cr3t"]`,
		"[login --client-secret s3cr3t]",
		"curl -u bob:s3cr3t https://h", "curl --user=bob:s3cr3t h", `curl -H "Authorization: Bearer s3cr3t"`,
		"PGPASSWORD=s3cr3t psql",
		"export DB_PASS=s3cr3t", "MYSQL_PWD=s3cr3t mysql", "env AWS_SECRET_ACCESS_KEY=s3cr3t", "--pin s3cr3t",
		// names and values
		"pass=s3cr3t", "PASS: s3cr3t", "user=u pass=s3cr3t host=h", "pin=s3cr3t", "card_pin=s3cr3t",
		"{UserPin:s3cr3t}", "dbPass=s3cr3t", "run --dbPass s3cr3t", "run --dbpassword s3cr3t",
		"<dbPass>s3cr3t</dbPass>",
		"otp=s3cr3t", "password1=s3cr3t", "password_confirmation=s3cr3t", "passwords: [s3cr3t]", "passcode=s3cr3t",
		"passphrase: s3cr3t",
		"Bearer: s3cr3t", "bearer=s3cr3t", "X-Auth-Token: s3cr3t", "Ocp-Apim-Subscription-Key: s3cr3t",
		"encryption_key: s3cr3t",
		"JSESSIONID=s3cr3t", "sess_id=s3cr3t", "password := \"s3cr3t\"", "password => 's3cr3t'",
		"user[password]=s3cr3t",
		"password=s3\\ cr3t host=h", "password='it''s3cr3t'", `password="it""s3cr3t"`, "password=`s3cr3t`",
		"password = s3cr3t",
		"{password=\"s3cr3t\",user=\"u\"}", "cvv: s3cr3t", "line\\npass=s3cr3t",
		// connections
		"app:s3cr3t@tcp(db:3306)/orders", "app:s3c@r3t@tcp(db:3306)/orders?parseTime=true", "app:s3cr3t@/orders",
		"app:s3cr3t@unix(/run/mysqld.sock)/orders", "dial app:s3cr3t@db:5432: refused",
		"jdbc:oracle:thin:scott/s3cr3t@//db:1521/x",
		"DefaultEndpointsProtocol=https;AccountName=n;AccountKey=s3cr3t+/==;EndpointSuffix=core.windows.net",
		"Endpoint=sb://n/;SharedAccessKeyName=k;SharedAccessKey=s3cr3t=", "Server=h;User Id=u;Pwd=s3cr3t;",
		"amqp://u:s3cr3t@h:5672/v",
		"https://h/b?sv=1&sig=s3cr3t%3D&se=2", "https://b/o?X-Amz-Credential=c&X-Amz-Signature=s3cr3t",
		"redis://:s3cr3t@h:6379/0",
		// documents
		`<password type="x">s3cr3t</password>`, `<wsse:Password Type="PasswordText">s3cr3t</wsse:Password>`,
		"<Token\n>s3cr3t</Token>",
		"<password><![CDATA[s3cr3t]]></password>", `<db.password>s3cr3t</db.password>`,
		`<add key="password" value="s3cr3t"/>`,
		`{"name":"Authorization","value":"s3cr3t"}`, `{"name":"api_key","value":"s3cr3t"}`,
		`{\"name\":\"api_key\",\"value\":\"s3cr3t\"}`,
		`{"a":"{\"b\":\"{\\\"password\\\":\\\"s3cr3t\\\"}\"}"}`, `{"token":["x]","s3cr3t"],"n":1}`,
		`{"secret":{"a":{"b":{"c":["s3cr3t"]}}}}`,
		`{"secret":[[[[[[["s3cr3t"]]]]]]]}`, `{"password":["x", "s3cr3t`, "&quot;password&quot;:&quot;s3cr3t&quot;",
		"&#34;pin&#34;:&#34;s3cr3t&#34;",
		"password%3Ds3cr3t%26a%3Db", "%22password%22%3A%22s3cr3t%22%2C", "user%5Bpassword%5D=s3cr3t",
		`http.Header{"Cookie":[]string{"a=s3cr3t"}}`,
		"'password': 's3cr3t'", `:password=>"s3cr3t"`, "password: 's3cr3t", "ALTER ROLE app PASSWORD 's3cr3t'",
		"IDENTIFIED BY 's3cr3t'",
		// tokens
		"Bearer  s3cr3t-s3cr3t", "bearer\ts3cr3ts3cr3t",
		"-----BEGIN RSA PRIVATE KEY-----\ns3cr3t\n-----END RSA PRIVATE KEY-----",
		"-----BEGIN PRIVATE KEY-----\ns3cr3t", "pushed with ghp_s3cr3ts3cr3ts3cr3ts3cr3ts3cr3ts3cr",
		"using xoxb-s3cr3ts3cr3ts3cr3t1",
		"stripe sk_live_s3cr3ts3cr3ts3", "glpat-s3cr3ts3cr3ts3cr3t",
		"jwt eyJhbGciOiJub25lIn0.eyJzdWIiOiJzM2NyM3QifQ.s3cr3t",
	} {
		for _, whole := range []string{text, "failed: " + text, text + "\nnext line", `"` + text} {
			redacted := common(whole)
			require.NotContains(t, redacted, "s3c", whole)
			require.NotContains(t, redacted, "cr3t", whole)
			require.NotContains(t, redacted, "r3t", whole)
			require.Equal(t, redacted, common(redacted), "%s: it is left alone once it is redacted", whole)
		}
	}
}

// Common runs on texts that other people write. Sixteen times the text may take about sixteen times as long.
func TestCommonRunsInLinearTime(t *testing.T) {
	took := func(part string, bytes int) time.Duration {
		v := redact.Value{Part: redact.PartError, Bytes: []byte(strings.Repeat(part, bytes/len(part)+1))}
		began := time.Now()
		redact.Common(v)
		return time.Since(began)
	}
	for _, part := range []string{
		"a", "pass", "password", "password=", `password="`, "password=[", "token ", "key=", "api_key=[", `xpass="`,
		"xPass=[", `\"`,
		"<", "<password ", "<password>", "--pass ", " -u", "a:", "a:b@", "a:b@( ", "@", "thin:a/", "eyJ", "eyJ.", "xeyJ",
		"-----BEGIN PRIVATE KEY-----", "private", "pass%3d", "%22", "bearer ", "identified by '", `"password",`, `"value`,
		"ghp_", "4111 ", "4111 1111 1111 1112 ", "1.1111111111", "authorization:", "signature=", "&quot;", "a://b:c@",
	} {
		inProportion := false
		for try := 0; try < 20 && !inProportion; try++ { // other programs take time, too
			inProportion = took(part, 16*512) < 64*took(part, 512)
		}
		require.True(t, inProportion, part)
	}
}

// Common keeps what operators need to find a message and to tell failures apart.
func TestCommonKeepsOtherText(t *testing.T) {
	for _, text := range []string{
		"4.111111111111112e+15", "1.763863256411154e+15", "4.1e+15", "4.111111111111111e+150",
		"4.111111111111111e-15",
		"4.111111111111111",
		"4.111111111111111e+", "v14.111111111111111e+15", "", "connection refused", "status 503: Service Unavailable",
		"SQLSTATE 23505",
		"ERROR: duplicate key value violates unique constraint \"users_email_key\"",
		"2026-11-23T02:16:08.411154Z", "2026-11-23 02:16:08.411154111111111+00", "at 411111111.1111111", "1763863256",
		"1763863256411", "1763863256411154", "1763863256411154111",
		"20261123021608", "20261123021608411154", "orders/4/4111111111@1763863256411", "offset 9223372036854775807",
		"offset 4111111111111112", "order 4500001234567",
		"7f9c2ba4-e8f1-4111-8111-111111111111", "41111111-1111-4111-8111-111111111111",
		"12345678-1234-1234-1234-123456789012", "0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11",
		"4bf92f3577b34da6a3ce929d0e0e4736", "a4111111111111111", "4111111111111111f",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "0.4111111111111111",
		"41111111111111111111", "ORD-2026-000123", "+49 30 1234567", "4111 1111", "4111 1111 1111",
		"4111 1111-1111 1111", "4111 111 11111 1111", "10.244.13.7:5432",
		"goroutine 1 [running]: main.f(0xc000123456)\n\t/app/main.go:41 +0x1d", "max_tokens=512", "key=orders.mail",
		"http://h:80/a?b=c", "postgres://app@db/orders",
		"author: bob", "Basic authentication required", "Bearer realm=\"x\"", "bearer of news", "token",
		"the password was wrong", "password:", "handler timed out after 30s",
		"partition 4 offset 1111 epoch 1111 leader 1111", `{"id":"o-1","amount":4111.11,"at":"2026-11-23T02:16:08Z"}`,
		"eyJ.x", "\xff\xfe4\x00", "100%", "C:\\temp\\",
		"compass=north", "bypass: true", "the token ring failed", "spin=up", "pin the version", "mapping: x",
		"SIGTERM=15", "design: blue",
		"tokenizer=bpe", "password_file=/run/x", "passenger=2", "passed: 3", "monkey=1",
		"flag --password is required",
		"flag needs an argument: --password", "invalid signature: crypto/rsa: verification error", "session=12 of 14",
		"keys: 4",
		"worker-pass 3", "sail --compass north",
		"ce_id=7f9c2ba4-e8f1-4111-8111-111111111111", "order 4500001234567: not paid",
		"at 12:30 bob@example.com wrote",
		"user: bob, roles: [a, b]", "<passwords/>", "docs say: basic authentication", "topic orders, partition 3@17",
		"Basic HTTP access",
		"task-path/to: ok", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
	} {
		require.Equal(t, text, common(text))
	}
	for _, name := range []string{"compass", "max_tokens", "key", "keys", "spin", "ce_id", "author"} {
		header := redact.Value{Part: redact.PartHeader, Name: name, Bytes: []byte("x")}
		require.Equal(t, "x", string(redact.Common(header)), name)
	}
	require.Nil(t, redact.Common(redact.Value{Part: redact.PartHeader, Name: "Authorization"}))
}

func FuzzCommon(f *testing.F) {
	for _, text := range []string{"card 4111 1111 1111 1111", `{"password":"x"}`, "Authorization: Bearer x", "token=[[",
		`\"token\":\"\\`, "%20%", "Basic "} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		once := common(text)
		if once == text {
			return
		}
		require.True(t, strings.Contains(once, redact.Mask) || strings.Contains(once, "xxxxx"))
	})
}
