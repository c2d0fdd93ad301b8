package store_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
)

// TestSanitizeError proves contract 3.6.
func TestSanitizeError(t *testing.T) {
	for name, each := range map[string]struct{ text, expected string }{
		"fits":          {"no luck: é日😀", "no luck: é日😀"},
		"NUL":           {"a\x00b", "a\uFFFDb"},
		"invalid UTF-8": {"a\xffb", "a\uFFFDb"},
		"exactly":       {strings.Repeat("é", 2000), strings.Repeat("é", 2000)},
		"one too many":  {strings.Repeat("é", 2001), strings.Repeat("é", 2000)},
		"many bytes":    {strings.Repeat("😀", 3000), strings.Repeat("😀", 2000)},
		"huge":          {strings.Repeat("日", 1<<20), strings.Repeat("日", 2000)},
		"NULs":          {strings.Repeat("\x00", 2001), strings.Repeat("\uFFFD", 2000)},
		"empty":         {"", ""},
	} {
		require.Equal(t, each.expected, store.SanitizeError(each.text), name)
	}
}

func FuzzSanitizeError(f *testing.F) {
	f.Add("plain")
	f.Add("\xff\x00é")
	f.Add(strings.Repeat("😀", 2001))
	f.Fuzz(func(t *testing.T, text string) {
		clean := store.SanitizeError(text)
		require.NoError(t, store.CheckText(clean, columns.MaxLastError))
		require.Equal(t, clean, store.SanitizeError(clean))
		if store.CheckText(text, columns.MaxLastError) == nil {
			require.Equal(t, text, clean)
		}
	})
}

func TestCheckTextReportsTheReason(t *testing.T) {
	require.NoError(t, store.CheckText(strings.Repeat("é", 200), 200))
	require.NoError(t, store.CheckText(strings.Repeat("é", 5000), 0))
	for text, reason := range map[string]string{
		strings.Repeat("é", 201): "201 characters, at most 200",
		"a\x00":                  "NUL",
		"\xc3":                   "invalid UTF-8",
	} {
		err := store.CheckText(text, 200)
		require.ErrorIs(t, err, store.ErrUnstorable)
		require.ErrorContains(t, err, reason)
		require.True(t, store.IsData(err))
		require.True(t, utf8.ValidString(err.Error()))
	}
}
