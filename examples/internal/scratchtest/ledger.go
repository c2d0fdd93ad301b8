package scratchtest

import (
	"bytes"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Figures are those of a ledger, which must be the last of the output, in this
// order and nothing else.
func Figures(t *testing.T, out string, names ...string) map[string]float64 {
	t.Helper()
	lines := `(?:^|\n)`
	for _, name := range names {
		lines += regexp.QuoteMeta(name) + `: (\d+(?:\.\d+)?)\n`
	}
	found := regexp.MustCompile(lines + "$").FindStringSubmatch(out)
	require.NotNil(t, found, "%s", out)
	figures := map[string]float64{}
	for i, name := range names {
		value, err := strconv.ParseFloat(found[i+1], 64)
		require.NoError(t, err)
		figures[name] = value
	}
	return figures
}

// RequireProblemsShort fails unless a ledger with more than 20 problems prints
// that many of them, how many more there are, and then a figure.
func RequireProblemsShort(t *testing.T, problems []string, print func(out io.Writer), figure string) {
	t.Helper()
	var out bytes.Buffer
	print(&out)
	require.Equal(t, 20, strings.Count(out.String(), "does not balance: "))
	_, rest, found := strings.Cut(out.String(), "… and "+strconv.Itoa(len(problems)-20)+" more\n")
	require.True(t, found, "%s", &out)
	require.Contains(t, "\n"+rest, "\n"+figure+"\n")
}
