package pages

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

var (
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
)

func TestLinksInPagesResolve(t *testing.T) {
	for _, page := range append(pages(t), "CONTRIBUTING.md", "CHANGELOG.md") {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(root, page))
			require.NoError(t, err)
			require.NotRegexp(t, `(?m)^(<<<<<<<|>>>>>>>) `, string(text), "a merge left both sides")
			prose := code.ReplaceAllString(fenced.ReplaceAllString(string(text), ""), "code")
			for _, found := range link.FindAllStringSubmatch(prose, -1) {
				if strings.Contains(found[1], "://") {
					continue
				}
				target, anchor, anchored := strings.Cut(found[1], "#")
				file := page
				if target != "" {
					file = path.Join(path.Dir(page), target)
				}
				_, err := os.Stat(filepath.Join(root, file))
				require.NoError(t, err, "link %s", found[1])
				if anchored {
					require.Contains(t, anchors(t, file), anchor, "link %s", found[1])
				}
			}
		})
	}
}

// Every page can be found from the index, and the index from README's.
func TestEveryPageIsInTheIndex(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(root, "docs/README.md"))
	require.NoError(t, err)
	for _, page := range pages(t) {
		if page == "README.md" || page == "docs/README.md" {
			continue
		}
		require.Contains(t, string(index), "]("+path.Base(page)+")", "docs/README.md does not link to it")
	}
}

// anchorsOf remembers: some pages link to another's hundreds of times.
var anchorsOf = map[string][]string{}

// anchors are those that GitHub gives to a page's headings.
func anchors(t *testing.T, file string) []string {
	t.Helper()
	if all, known := anchorsOf[file]; known {
		return all
	}
	text, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	var all []string
	seen := map[string]int{}
	for _, found := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
		title := link.ReplaceAllString(found[1], "]")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, title)
		if n := seen[anchor]; n > 0 {
			all = append(all, anchor+"-"+strconv.Itoa(n))
		} else {
			all = append(all, anchor)
		}
		seen[anchor]++
	}
	anchorsOf[file] = all
	return all
}

func TestEveryPackageIsInTheMapForContributors(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	require.NoError(t, err)
	for _, pattern := range []string{"*", "internal/*"} {
		directories, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, directories)
		for _, directory := range directories {
			info, err := os.Stat(directory)
			require.NoError(t, err)
			name, err := filepath.Rel(root, directory)
			require.NoError(t, err)
			sources, err := filepath.Glob(filepath.Join(directory, "*.go"))
			require.NoError(t, err)
			if info.IsDir() && (len(sources) > 0 || pattern == "internal/*") {
				require.Contains(t, string(page), "`"+name+"/`")
			}
		}
	}
}
