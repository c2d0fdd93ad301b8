package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

func parse(t *testing.T, name string, into any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(content, into), name)
}

func TestDependabotWatchesEveryModule(t *testing.T) {
	var modules []string
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		if err == nil && entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
			return filepath.SkipDir
		}
		if name == "go.mod" {
			dir, relErr := filepath.Rel(root, filepath.Dir(path))
			require.NoError(t, relErr)
			modules = append(modules, filepath.Join("/", dir))
		}
		return err
	}))
	var config struct {
		Updates []struct {
			Ecosystem   string   `yaml:"package-ecosystem"`
			Directories []string `yaml:"directories"`
		} `yaml:"updates"`
	}
	parse(t, ".github/dependabot.yml", &config)
	require.Equal(t, "gomod", config.Updates[0].Ecosystem)
	require.ElementsMatch(t, modules, config.Updates[0].Directories)
}

func TestCIUsesTheOldestGoOfGoMod(t *testing.T) {
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	oldest := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(gomod)
	require.NotNil(t, oldest)
	var workflow struct {
		Jobs map[string]struct {
			Strategy struct {
				Matrix struct{ Go []string }
			}
			Steps []struct{ Run string }
		}
	}
	parse(t, ".github/workflows/ci.yml", &workflow)
	require.Equal(t, []string{string(oldest[1]) + ".x", "stable"}, workflow.Jobs["test"].Strategy.Matrix.Go)
	steps := workflow.Jobs["test"].Steps
	require.Equal(t, ".ci/run", steps[len(steps)-1].Run)
}

func TestIssueTemplatesAreReadable(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(root, ".github/ISSUE_TEMPLATE/*.yml"))
	require.NoError(t, err)
	require.Len(t, names, 3)
	for _, name := range names {
		relative, err := filepath.Rel(root, name)
		require.NoError(t, err)
		var form map[string]any
		parse(t, relative, &form)
		if filepath.Base(name) != "config.yml" {
			require.Contains(t, form, "name")
			require.Contains(t, form, "description")
			require.NotEmpty(t, form["body"])
		}
	}
}
