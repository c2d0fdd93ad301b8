package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestContractAndArchitectureStayShort bounds the pages that a reader takes in as a whole. What does not
// fit belongs on the page of its subject, or in a docstring.
func TestContractAndArchitectureStayShort(t *testing.T) {
	for page, most := range map[string]int{"docs/contract.md": 10385, "docs/architecture.md": 1200} {
		text, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err)
		require.Less(t, len(strings.Fields(string(text))), most, "words of %s", page)
	}
}

// TestFilesNamedInArchitectureExist checks that a file that moves is renamed there, too.
func TestFilesNamedInArchitectureExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	require.NoError(t, err)
	named := regexp.MustCompile("`([a-z_/]+\\.go)`").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(named), 20)
	for _, file := range named {
		require.FileExists(t, filepath.Join(root, file[1]))
	}
}
