package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// requireHarmless fails if the text contains anything that a terminal would act on.
func requireHarmless(t testing.TB, text string) {
	t.Helper()
	require.True(t, utf8.ValidString(text), "%q", text)
	for i, r := range text {
		require.True(t, r == '\n' || unicode.IsPrint(r), "%U at %d of %q", r, i, text)
	}
}

func TestTextCannotLeaveItsCell(t *testing.T) {
	for text, want := range map[string]string{
		"plain":      "plain",
		"é 注文 😀":     "é 注文 😀",
		"\x1b[2J":    `\x1b[2J`,
		"\u009b31m":  `\u009b31m`,
		"a\r\nb\tc":  `a\r\nb\tc`,
		"\u202egpj":  `\u202egpj`,
		"\xff\xfe":   `\xff\xfe`,
		"\x00\x7f":   `\x00\x7f`,
		"\u2028":     `\u2028`,
		"\ufffd":     "\ufffd",
		"a\u00a0b":   `a\u00a0b`,
		"\U000e0041": `\U000e0041`,
	} {
		require.Equal(t, want, oneLine(text))
	}
}

func FuzzTextIsHarmless(f *testing.F) {
	f.Add(evil, 5)
	f.Add("注文é́́́́́́", 3)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		shown := oneLine(text)
		requireHarmless(t, shown)
		limit = max(1, min(limit, 1000))
		short := cut(shown, limit)
		requireHarmless(t, short)
		require.LessOrEqual(t, widthOf(short), limit)
		require.LessOrEqual(t, utf8.RuneCountInString(short), limit*(1+maxMarks)+maxMarks)
		if widthOf(shown) <= limit {
			require.Equal(t, widthOf(shown), widthOf(short), "nothing is cut that fits")
		}

		var out bytes.Buffer
		require.NoError(t, writeJSON(&out, map[string]any{"text": text, "bytes": []byte(text)}))
		requireHarmless(t, out.String())
		var back struct {
			Text  string
			Bytes struct {
				Text   string
				Base64 []byte
			}
		}
		require.NoError(t, json.Unmarshal(out.Bytes(), &back))
		require.Equal(t, strings.ToValidUTF8(text, "\ufffd") == text, back.Text == text)
		require.Equal(t, text, back.Bytes.Text+string(back.Bytes.Base64), "bytes are exact")
	})
}

func TestCutKeepsWhatFits(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "ab…"},
		{"abc", 0, "abc"},
		{"注文", 4, "注文"},
		{"注文です", 5, "注文…"},
		{"注文です", 4, "注…"},
		{"e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"},
		{"e\u0301e\u0301e\u0301e", 3, "e\u0301e\u0301…"},
		{"e" + strings.Repeat("\u0301", 50), 3, "e" + strings.Repeat("\u0301", maxMarks)},
	} {
		require.Equal(t, c.want, cut(c.text, c.limit), "%q within %d", c.text, c.limit)
	}
}

func TestAges(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                               "0s",
		900 * time.Millisecond:          "0s",
		42 * time.Second:                "42s",
		3*time.Minute + 12*time.Second:  "3m12s",
		5*time.Hour + 7*time.Minute + 1: "5h07m",
		12*24*time.Hour + 3*time.Hour:   "12d03h",
		-90 * time.Second:               "-1m30s",
	} {
		require.Equal(t, want, age(d))
	}
}

func TestTimesOfFilters(t *testing.T) {
	for text, want := range map[string]time.Time{
		"":                          {},
		"90m":                       now.Add(-90 * time.Minute),
		"7d":                        now.AddDate(0, 0, -7),
		"2026-01-02T03:04:05Z":      time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		"2026-01-02T03:04:05+01:00": time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC),
		"2026-01-02":                time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC),
	} {
		got, err := when("from", text, now, -1)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"yesterday", "-1h", "5", "2026-13-01", "1d2h"} {
		_, err := when("from", text, now, -1)
		require.ErrorContains(t, err, "--from = ")
		require.Equal(t, exitMisuse, exitCode(err))
	}
}
