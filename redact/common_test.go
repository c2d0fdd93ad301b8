package redact_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

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
func TestCommonHidesCardNumbersThatBecameFloats(t *testing.T) {
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
		"X-Amz-Security-Token", "sessionId"} {
		for _, part := range []redact.Part{redact.PartHeader, redact.PartAttribute} {
			require.Equal(t, redact.Mask, string(redact.Common(redact.Value{Part: part, Name: name, Bytes: []byte("s3cr3t")})),
				name)
		}
	}
}

// Common keeps what operators need to find a message and to tell failures apart.
func TestCommonLeavesEverythingElse(t *testing.T) {
	for _, text := range []string{
		"4.111111111111112e+15", "1.763863256411154e+15", "4.1e+15", "4.111111111111111e+150", "4.111111111111111e-15",
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
	} {
		require.Equal(t, text, common(text))
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
