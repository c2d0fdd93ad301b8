package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// inboxctlPage is written of the commands' own help.
const inboxctlPage = "docs/inboxctl.md"

var (
	command = regexp.MustCompile("(?m)(?:^|`)inboxctl +([a-z][^`\n]*)")
	flagged = regexp.MustCompile(`--[a-z-]+`)
	word    = regexp.MustCompile(`^[a-z][a-z-]*$`)
)

// What pages tell to type is what inboxctl understands.
func TestCommandsInPagesExist(t *testing.T) {
	reference, err := os.ReadFile(filepath.Join(root, inboxctlPage))
	require.NoError(t, err)
	for _, page := range pages(t) {
		if page == inboxctlPage {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err)
		for _, found := range command.FindAllStringSubmatch(string(text), -1) {
			name := ""
			for _, part := range strings.Fields(found[1]) {
				if !word.MatchString(part) {
					break
				}
				if longer := strings.TrimSpace(name + " " + part); strings.Contains(string(reference), "inboxctl "+longer) {
					name = longer
				} else {
					require.NotEmpty(t, name, "%s: inboxctl %s", page, found[1])
					break
				}
			}
			require.NotEmpty(t, name, "%s: inboxctl %s", page, found[1])
			for _, flag := range flagged.FindAllString(found[1], -1) {
				require.Contains(t, string(reference), flag, "%s: inboxctl %s", page, found[1])
			}
		}
	}
}
