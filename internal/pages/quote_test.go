package pages

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the pages' code blocks")

// root is the top of the repository.
const root = "../.."

// comparedElsewhere are pages whose Go code another test compares.
var comparedElsewhere = map[string]string{
	"docs/dashboard.md": "dashboard, TestPageShowsWorkingCode",
}

var (
	codeBlock = regexp.MustCompile("(?ms)^(?:<!-- code: (\\S+) -->\n)?```(\\w*)\n(.*?)^```$")
	marks     = regexp.MustCompile(`(?m)^[ \t]*(//|--|#)page:(begin|end).*\n`)
)

func TestCodeInPagesMatchesCompiledCode(t *testing.T) {
	for _, page := range pages(t) {
		t.Run(page, func(t *testing.T) {
			file := filepath.Join(root, page)
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			written := codeBlock.ReplaceAllStringFunc(string(text), func(block string) string {
				parts := codeBlock.FindStringSubmatch(block)
				from, language, quoted := parts[1], parts[2], parts[3]
				if from == "" {
					if comparedElsewhere[page] == "" {
						require.NotEqual(t, "go", language, "this block does not say where it is from:\n%s", quoted)
					}
					return block
				}
				want := quotation(t, from)
				if !*update {
					require.Equal(t, want, quoted, "%s is not what the page has; go test ./internal/pages -update", from)
				}
				return "<!-- code: " + from + " -->\n```" + language + "\n" + want + "```"
			})
			if *update && written != string(text) {
				require.NoError(t, os.WriteFile(file, []byte(written), 0o644))
			}
		})
	}
}

// pages are all of the repository's that are for users, from its top.
func pages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, found)
	all := []string{"README.md"}
	for _, file := range found {
		all = append(all, "docs/"+filepath.Base(file))
	}
	return all
}

// quotation is what from stands for: file#region, file#function, or a whole file.
func quotation(t *testing.T, from string) string {
	t.Helper()
	file, name, _ := strings.Cut(from, "#")
	source, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	text := string(source)
	if name != "" {
		text = region(t, text, name, from)
	}
	return dedent(strings.Trim(marks.ReplaceAllString(text, ""), "\n")) + "\n"
}

// region is what stands between the marks of that name, or the function of that
// name without its comment.
func region(t *testing.T, text, name, from string) string {
	t.Helper()
	quoted := regexp.QuoteMeta(name)
	begin := regexp.MustCompile(`(?m)^[ \t]*(//|--|#)page:begin `+quoted+`\n`).FindAllStringIndex(text, -1)
	if len(begin) == 0 {
		functions := regexp.MustCompile(`(?ms)^func (\([^)]*\) )?`+quoted+`[\[(].*?^}\n`).FindAllString(text, -1)
		require.Len(t, functions, 1, "regions and functions that are %s", from)
		return functions[0]
	}
	require.Len(t, begin, 1, "regions that are %s", from)
	rest := text[begin[0][1]:]
	end := regexp.MustCompile(`(?m)^[ \t]*(//|--|#)page:end`).FindStringIndex(rest)
	require.NotNil(t, end, "%s has no end", from)
	return rest[:end[0]]
}

// dedent takes from every line the tabs that all of them begin with.
func dedent(text string) string {
	lines := strings.Split(text, "\n")
	least := -1
	for _, line := range lines {
		if tabs := len(line) - len(strings.TrimLeft(line, "\t")); line != "" && (least < 0 || tabs < least) {
			least = tabs
		}
	}
	for i, line := range lines {
		if line != "" {
			lines[i] = line[least:]
		}
	}
	return strings.Join(lines, "\n")
}
