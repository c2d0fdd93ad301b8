package options

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite docs/options.md")

const root = "../../.."

func TestOptionsPageMatchesTheCode(t *testing.T) {
	want, err := page(root)
	require.NoError(t, err)
	file := filepath.Join(root, "docs/options.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "go test ./internal/pages/options -update")
}

// defaultsInWords are those the contract tells in words.
var defaultsInWords = map[string]string{
	"none": "0", "0 (forever)": "0", "0 (an eighth of the longest retention)": "0", "`None`": "none", "`Ignore`": "ignore", "`Log`": "log", "`Store`": "store", "`Halt`": "halt",
	"10 s, and below the deadline of Fx": "10s", "by database, see 5.3": "",
	`"inbox_"`: "inbox_",
}

// Contract 9, its defaults: they and the code are one, and no option lacks the
// advice when not to use it.
func TestContractOptionsMatchTheCode(t *testing.T) {
	contract, err := os.ReadFile(filepath.Join(root, "docs/contract.md"))
	require.NoError(t, err)
	_, text, found := strings.Cut(string(contract), "\n## 9. Options\n")
	require.True(t, found)
	text, _, found = strings.Cut(text, "\n## 10. ")
	require.True(t, found)
	all, err := settings(root)
	require.NoError(t, err)
	advice := map[string]string{}
	for _, e := range all {
		advice[e.name[strings.LastIndex(e.name, ".")+1:]] = e.doc
	}
	inCode := map[string]string{}
	for _, v := range values() {
		require.Equal(t, v.key, snakeCase(v.name), "the page says that a key is the option's name in snake case")
		inCode[v.name] = v.byDefault
	}
	rows := regexp.MustCompile("`(\\w+)`:\\s((?:[^;.]|\\.\\d)+)[;.]").FindAllStringSubmatch(text, -1)
	require.Greater(t, len(rows), 30)
	for _, row := range rows {
		name, documented := row[1], strings.Join(strings.Fields(row[2]), " ")
		byDefault, known := inCode[name]
		require.True(t, known, "%s is no field of inbox.Options", name)
		want, inWords := defaultsInWords[documented]
		if !inWords {
			want = strings.NewReplacer(" ", "", ",", "").Replace(documented)
		}
		if name == "Schema" {
			want = ""
		}
		require.Equal(t, want, byDefault, "default of %s, in the contract %q", name, documented)
		require.Regexp(t, `(?i)\b(do|does) not\b|don't`, advice[name], "%s does not say when not to use it", name)
		delete(inCode, name)
	}
	require.Empty(t, inCode, "options that the contract does not tell of")
}

var capital = regexp.MustCompile(`([a-z])([A-Z])`)

func snakeCase(name string) string {
	return strings.ToLower(capital.ReplaceAllString(name, "${1}_$2"))
}
