package fingerprint

import (
	"fmt"
	"math/rand"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestNormalisedErrorsOfOneKindAreTheSame(t *testing.T) {
	for expected, texts := range map[string][]string{
		"order # not found": {"order 17 not found", "order 4,711 not found",
			"order\n\t-1  not found", "order 0190b2c3-89ab-7def-8123-456789abcdef not found", "order 0x7ffe01 not found",
			"order deadbeef01 not found", "order 9fK2xQ7 not found"},
		"order# is bad": {"order1 is bad", "order99 is bad"},
		"duplicate key \"#\" (SQLSTATE 23505)": {`duplicate key "orders_pkey" (SQLSTATE 23505)`,
			`duplicate key "a \" b" (SQLSTATE 23505)`, `duplicate key "" (SQLSTATE 23505)`},
		"mail: 421 4.7.0 try again":  {"mail: 421 4.7.0 try again"},
		"421-4.7.0 try again":        {"421-4.7.0 try again"},
		"SMTP 421: busy":             {"SMTP 421: busy"},
		"550 no such user":           {"550 no such user"},
		"order: # items are missing": {"order: 401 items are missing", "order: 17 items are missing"},
		"status # is not one": {"status 4711 is not one", "status 404.5 is not one",
			"status 2026-01-02 is not one"},
		"handler panicked: no order # in main.(*Mail).Handle": {"handler panicked: no order 1\n\nmain.(*Mail).Handle\n\t/a/mail.go:12\nmain.f\n\t/a/f.go:1\n", "handler panicked: no order 2\n\nmain.(*Mail).Handle\n\t/b/mail.go:13\nmain.g\n\t/b/g.go:1\n"},
		"can't open '#' in `#`":                               {"can't open 'a b' in `x`", "can't open 'it's' in `y\"z`"},
		"dial tcp #: connection refused": {"dial tcp 10.0.0.1:5432: connection refused",
			"dial tcp [2001:db8::1]:5432: connection refused", "dial tcp [::1]:80: connection refused",
			"dial tcp fe80::1: connection refused", "dial tcp 1:2:3:4:5:6:7:8: connection refused"},
		"timed out after #": {"timed out after 3s", "timed out after 1m2.5s",
			"timed out after 300ms", "timed out after 15µs", "timed out after 2h0m0s", "timed out after 17"},
		"at # it failed": {"at 2026-01-02T03:04:05Z it failed",
			"at 2026-01-02T03:04:05.123456789+02:00 it failed", "at 2026/01/02 it failed", "at 03:04:05 it failed"},
		"mail to # bounced.": {"mail to a.b+c@example.com bounced.",
			"mail to x@y.org bounced."},
		"handler panicked: runtime error: index [#]": {"handler panicked: runtime error: index [5]",
			"handler panicked: runtime error: index [12]"},
		"no digits at all: café ☂": {"no digits at all: café ☂", " no  digits at all: café ☂ "},
		"\"unanswered":             {"\"unanswered"},
		"std::vector add::face":    {"std::vector add::face"},
		"facade":                   {"facade"},
		"":                         {"", " \n"},
	} {
		for _, text := range texts {
			require.Equal(t, strings.TrimLeft(expected, " "), Normalise(text), "%q", text)
		}
	}
}

// Whether a number passes as a card number is no other kind of failure.
func TestCardLikeNumbersAreNumbers(t *testing.T) {
	for _, texts := range [][]string{
		{"order 4111111111111111 not found", "order 4111111111111112 not found", "order 17 not found"},
		{"order=4111111111111111", "order=4111111111111112"},
		{"no status 4111111111111111", "no status 4111111111111112"},
		{"card 4111-1111-1111-1111 is bad", "card 4111-1111-1111-1112 is bad"},
		{`no "4111111111111111"`, `no "4111111111111112"`},
	} {
		for _, text := range texts[1:] {
			require.Equal(t, Of("h", texts[0]), Of("h", text), text)
		}
	}
}

func TestErrorsOfOtherKindsStayDistinct(t *testing.T) {
	seen := map[string]string{}
	for _, text := range []string{"order 17 not found", "customer 17 not found", "order 17 not paid", "order is not found",
		"dial tcp 10.0.0.1:80: connection refused", "dial tcp 10.0.0.1:80: i/o timeout",
		"worker.go:12 failed", "handler.go:12 failed",
		"status 404", "status 500", "status 503", "unexpected status code: 404", "unexpected status code: 503",
		"HTTP 404 from shop", "HTTP 503 from shop", "shop: 404 Not Found", "shop: 502 Bad Gateway",
		"ERROR: no (SQLSTATE 23505)", "ERROR: no (SQLSTATE 42P01)", "Error 1062 (23000): no", "Error 1213 (40001): no",
		"mail: 421 too many connections", "mail: 450 too many connections", "550 5.1.1 refused", "550 5.7.1 refused",
		"exit status 1", "exit status 2", "rpc error: code = 5", "rpc error: code = 14",
		"handler panicked: boom\n\nmain.a\n\t/a.go:1\n", "handler panicked: boom\n\nmain.b\n\t/a.go:2\n"} {
		name := Of("h", text)
		require.Empty(t, seen[name], text)
		seen[name] = text
		require.NotEqual(t, name, Of("g", text), "another handler is another group")
	}
}

// What is stored of an error ends where its length says: that end does not count.
func TestNormalisedErrorIgnoresTheCutEnd(t *testing.T) {
	stack := strings.Repeat("main.work(0xc000010000)\n\t/src/main.go:12 +0x1d\n", 100)
	long := func(id string) string { return string([]rune("failed: order " + id + "\n" + stack)[:2000]) }
	require.Equal(t, Normalise(long("1")), Normalise(long("0190b2c3-89ab-7def-8123-456789abcdef")))
	require.LessOrEqual(t, utf8.RuneCountInString(Normalise(long("1"))), normalisedRunes)
}

// Whatever stands in an error: numbers do not name its kind, the result is text
// of bounded length, and what was normalised stays as it is but for quotes.
func FuzzNormalise(f *testing.F) {
	for _, text := range []string{"order 17", "a\"b\"'c'`d`", "1m2s 3:4:5 0x 0xzz [::]:1", "a@b@c", "é1é\xff\x00", "''''",
		"-.-,:/", "0190b2c3-89ab-7def-8123-456789abcdef0", "1Z1Z1T1", "\f 0"} {
		f.Add(text, int64(1))
	}
	f.Add("\x80\x00"+strings.Repeat("`", 1300), int64(1)) // ends amid what stands in quotes
	f.Fuzz(func(t *testing.T, text string, seed int64) {
		normalised := Normalise(text)
		require.True(t, utf8.ValidString(normalised))
		require.LessOrEqual(t, utf8.RuneCountInString(normalised), normalisedRunes)
		if !regexp.MustCompile(`(?i)status|http|smtp|code|error|errno|sqlstate|panicked|[1-5][0-9][0-9][ -]`).MatchString(text) {
			require.NotRegexp(t, `[0-9]`, normalised, "only codes stay")
		}
		require.NotRegexp(t, `^ |  |[\t\n\r]`, normalised)
		// Other numbers of as many digits where plain numbers are.
		random := rand.New(rand.NewSource(seed))
		// no hexadecimal, no word before a code, no reply of SMTP
		if !strings.ContainsAny(text, "abcdeghoprstuABCDEFGHOPRSTUfxX") && !regexp.MustCompile(`[0-9]{3}[ -]`).MatchString(text) {
			other := strings.Map(func(r rune) rune {
				if r >= '0' && r <= '9' {
					return '0' + rune(random.Intn(10))
				}
				return r
			}, strings.ToValidUTF8(text, "\uFFFD"))
			require.Equal(t, normalised, Normalise(other))
		}
	})
}

func BenchmarkNormalise(b *testing.B) {
	text := fmt.Sprintf("order %d not found: %s", 17, strings.Repeat("main.work(0xc000010000) /src/main.go:12 ", 40))
	for b.Loop() {
		Normalise(text)
	}
}
