package brief_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/brief"
)

func TestNameKeepsShortValuesAndTheBeginningOfLongOnes(t *testing.T) {
	require.Equal(t, "order.created", brief.Name("order.created"))
	require.Equal(t, strings.Repeat("a", 256), brief.Name(strings.Repeat("a", 256)))
	require.Equal(t, strings.Repeat("a", 256)+"…", brief.Name(strings.Repeat("a", 1<<20)))
	require.Equal(t, strings.Repeat("日", 85)+"…", brief.Name(strings.Repeat("日", 1<<20)), "never within a character")
}

func TestCharactersReadsNoMoreThanItKeeps(t *testing.T) {
	require.Equal(t, "日日", brief.Characters("日日日", 2))
	require.Equal(t, "日日", brief.Characters("日日", 2))
	huge := strings.Repeat("x", 1<<20)
	var kept string
	require.Zero(t, testing.AllocsPerRun(10, func() { kept = brief.Characters(huge, 2000) }))
	require.Len(t, kept, 2000)
}

func TestVisibleEscapesControlCharacters(t *testing.T) {
	for text, want := range map[string]string{
		"plain é日😀\n\tat x":    "plain é日😀\n\tat x",
		"\u009b31m":            `\u009b31m`,
		"\u0085 next":          `\u0085 next`,
		"a\u2028b\u2029c":      `a\u2028b\u2029c`,
		"a\u202eb\u2066c":      `a\u202eb\u2066c`,
		"\x1b]0;title\x07\r":   `\u001b]0;title\u0007\u000d`,
		"\xff":                 `\xff`,
		"\U000e0041":           `\ue0041`,
		"👩\u200d💻 is a person": "👩\u200d💻 is a person",
	} {
		require.Equal(t, want, brief.Visible(text))
	}
}

func TestErrorKeepsTheErrorItselfUnlessItsTextIsLong(t *testing.T) {
	require.NoError(t, brief.Error(nil))
	require.ErrorIs(t, brief.Error(io.EOF), io.EOF)
	cut := brief.Error(errors.New(strings.Repeat("x", 1<<20)))
	require.Len(t, cut.Error(), 20<<10)
}

func FuzzBrief(f *testing.F) {
	f.Add("plain", 3)
	f.Add("\xff\u202e日", 2)
	f.Fuzz(func(t *testing.T, text string, n int) {
		n = max(n%4096, 0)
		require.LessOrEqual(t, len(brief.Cut(text, n)), n)
		require.True(t, strings.HasPrefix(text, brief.Cut(text, n)))
		require.LessOrEqual(t, len(brief.Name(text)), 256+len("…"))
		cut := brief.Characters(text, n)
		require.True(t, strings.HasPrefix(text, cut))
		if utf8.ValidString(text) {
			require.True(t, utf8.ValidString(brief.Cut(text, n)))
			require.Equal(t, min(n, utf8.RuneCountInString(text)), utf8.RuneCountInString(cut))
		}
		visible := brief.Visible(text)
		require.True(t, utf8.ValidString(visible))
		require.Equal(t, visible, brief.Visible(visible))
	})
}
