package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sample is a tree with one module. Half of its code is tested.
var sample = map[string]string{
	".gitignore": "built\n",
	"built":      "not copied",
	"go.mod":     "module example.com/sample\n\ngo 1.24\n",
	"sum.go":     "package sample\n\nfunc Sum(a, b int) int { return a + b }\n\nfunc Untested() int { return 1 }\n\nfunc Twice(a int) int { return a + a }\n",
	"sum_test.go": `package sample

import "testing"

func TestSum(t *testing.T) {
	if Sum(1, 2) != 3 {
		t.Fatal("wrong sum")
	}
}

func TestBroken(t *testing.T) { t.Fatal("always") }

func TestLeftOut(t *testing.T) { t.Skip("LEFT OUT: Redis (no redis-server)") }

func TestSkipped(t *testing.T) { t.Skip("not today") }

func TestSoak(t *testing.T) {
	if Sum(1, 2) != 3 {
		t.Fatal("BROKEN: missing 3, doubled 1")
	}
}

func TestHalfLeftOut(t *testing.T) {
	TestSum(t)
	t.Run("with Redis", TestLeftOut)
}
`,
}

func TestRunnerDistinguishesCaughtFromEverythingElse(t *testing.T) {
	repository := sampleRepository(t)
	sum := test{Package: ".", Run: "^TestSum$"}
	for name, c := range map[string]struct {
		mutant mutant
		want   string // in the report; "" means caught
	}{
		"caught by a test": {mutant{Package: ".", In: "Sum", Old: "a + b", New: "a - b", Test: sum}, ""},
		"caught by a test's panic": {mutant{Package: ".", In: "Sum", Old: "return a + b", New: `panic("no")`,
			Test: sum}, ""},
		"caught by a test's timeout": {mutant{Package: ".", In: "Sum", Old: "return a + b", New: "select {}",
			Test: test{Package: ".", Run: "^TestSum$", Timeout: 1e9}}, ""},
		"survives": {mutant{Package: ".", In: "Untested", Old: "return 1", New: "return 2", Test: sum},
			"survived: no test noticed"},
		"does not compile": {mutant{Package: ".", In: "Sum", Old: "a + b", New: "a +", Test: sum},
			"does not compile"},
		"exits before any test": {mutant{Package: ".", In: "sum.go", Old: "package sample\n",
			New: "package sample\n\nimport \"os\"\n\nfunc init() { os.Exit(3) }\n", Test: sum},
			"no test failed, the command did"},
		"old text not there": {mutant{Package: ".", In: "Sum", Old: "a * b", New: "a - b", Test: sum},
			"occurs 0 times in Sum"},
		"old text in another function": {mutant{Package: ".", In: "Twice", Old: "a + b", New: "a - b", Test: sum},
			"occurs 0 times in Twice"},
		"old text there twice": {mutant{Package: ".", In: "Twice", Old: "a", New: "b", Test: sum}, "not once"},
		"function not there": {mutant{Package: ".", In: "Product", Old: "a", New: "b", Test: sum},
			"declares no Product"},
		"test fails without the defect": {mutant{Package: ".", In: "Sum", Old: "a + b", New: "a - b",
			Test: test{Package: ".", Run: "^TestBroken$"}}, "fails without the defect"},
		"expression selects no test": {mutant{Package: ".", In: "Sum", Old: "a + b", New: "a - b",
			Test: test{Package: ".", Run: "^TestNone$"}}, "no test ran and passed"},
		"test is skipped": {mutant{Package: ".", In: "Sum", Old: "a + b", New: "a - b",
			Test: test{Package: ".", Run: "^TestSkipped$"}}, "no test ran and passed"},
		"caught by what was not left out": {mutant{Package: ".", In: "Sum", Old: "a + b", New: "a - b",
			Test: test{Package: ".", Run: "^TestHalfLeftOut$"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.mutant.Name, c.mutant.Why = name, "the reason"
			var said strings.Builder
			ok, err := runAll(t.Context(), &report{out: &said}, repository, "", 1, []mutant{c.mutant})
			require.NoError(t, err)
			require.Equal(t, c.want == "", ok, said.String())
			if ok {
				require.Contains(t, said.String(), "mutants: 1 passed, 0 failed, 0 left out\n")
				return
			}
			require.Contains(t, said.String(), c.want)
			require.Contains(t, said.String(), "the reason")
			require.Contains(t, said.String(), "mutants: 0 passed, 1 failed, 0 left out\n")
		})
	}
}

func TestMutantNeedingAMissingServerIsSkipped(t *testing.T) {
	mutants := []mutant{
		{Name: "all", Why: "w", Package: ".", In: "Sum", Old: "a + b", New: "a - b",
			Test: test{Package: ".", Run: "^TestLeftOut$"}},
		{Name: "half", Why: "w", Package: ".", In: "Untested", Old: "return 1", New: "return 2",
			Test: test{Package: ".", Run: "^TestHalfLeftOut$"}},
	}
	repository := sampleRepository(t)
	var said strings.Builder
	ok, err := runAll(t.Context(), &report{out: &said}, repository, "", 1, mutants)
	require.NoError(t, err)
	require.True(t, ok)
	require.Contains(t, said.String(), "LEFT OUT  all (")
	require.Contains(t, said.String(), ": LEFT OUT: Redis (no redis-server)\n")
	require.Contains(t, said.String(), "LEFT OUT  half (")
	require.Contains(t, said.String(), "mutants: 0 passed, 0 failed, 2 left out\n")

	said.Reset()
	_, err = runAll(t.Context(), &report{out: &said, json: true}, repository, "", 1, mutants)
	require.NoError(t, err)
	for line := range strings.SplitSeq(strings.TrimSpace(said.String()), "\n") {
		require.True(t, json.Valid([]byte(line)), line)
	}
	require.Equal(t, 2, strings.Count(said.String(), `"Action":"skip"`), said.String())
	require.Contains(t, said.String(), `"Output":"LEFT OUT: Redis (no redis-server)\n"`)
}

func TestReportSaysWhatTheSoakHasFound(t *testing.T) {
	soaked := mutant{Name: "loses", Why: "w", Package: ".", In: "Sum", Old: "a + b", New: "a - b",
		Test: test{Package: ".", Run: "^TestSoak$"}}
	repository := sampleRepository(t)
	var said strings.Builder
	ok, err := runAll(t.Context(), &report{out: &said}, repository, "", 1, []mutant{soaked})
	require.NoError(t, err)
	require.True(t, ok)
	require.Regexp(t, `(?m)^caught    loses \(.*\): missing 3, doubled 1$`, said.String())

	said.Reset()
	_, err = runAll(t.Context(), &report{out: &said, json: true}, repository, "", 1, []mutant{soaked})
	require.NoError(t, err)
	require.Contains(t, said.String(), `"Output":"missing 3, doubled 1"`)
}

func TestSoakLooksForKnownMutants(t *testing.T) {
	require.Len(t, soaked(mutants), len(soakFinds))
	for _, m := range soaked(mutants) {
		require.Contains(t, m.Test.Run, "TestShortSoak")
		require.Contains(t, m.By, "Test")
		require.NoError(t, m.Test.declared(filepath.Join("..", "..")))
	}
}

func TestEachMutantIsRevertedBeforeTheNext(t *testing.T) {
	sum := test{Package: ".", Run: "^TestSum$"}
	var said strings.Builder
	ok, err := runAll(t.Context(), &report{out: &said}, sampleRepository(t), "", 1, []mutant{
		{Name: "first", Why: "w", Package: ".", In: "Sum", Old: "a + b", New: "a - b", Test: sum},
		{Name: "second", Why: "w", Package: ".", In: "Untested", Old: "return 1", New: "return 2", Test: sum},
	})
	require.NoError(t, err)
	require.False(t, ok)
	require.Contains(t, said.String(), "caught    first")
	require.Contains(t, said.String(), "FAILED    second")
	require.Contains(t, said.String(), "mutants: 1 passed, 1 failed, 0 left out\n")
}

func TestJobsCheckEachMutantOnce(t *testing.T) {
	sum := test{Package: ".", Run: "^TestSum$"}
	var said strings.Builder
	ok, err := runAll(t.Context(), &report{out: &said}, sampleRepository(t), "", 3, []mutant{
		{Name: "first", Why: "w", Package: ".", In: "Sum", Old: "a + b", New: "a - b", Test: sum},
		{Name: "second", Why: "w", Package: ".", In: "Sum", Old: "a + b", New: "a * b", Test: sum},
		{Name: "third", Why: "w", Package: ".", In: "Sum", Old: "a + b", New: "b - a", Test: sum},
	})
	require.NoError(t, err)
	require.True(t, ok, said.String())
	for _, name := range []string{"first", "second", "third"} {
		require.Equal(t, 1, strings.Count(said.String(), "caught    "+name), said.String())
	}
}

func TestWorkingTreeIsNotTouchedAndTheCopyIsRemoved(t *testing.T) {
	repository := sampleRepository(t)
	scratch := t.TempDir()
	t.Setenv("TMPDIR", scratch)
	_, err := runAll(t.Context(), &report{out: io.Discard}, repository, "", 1, []mutant{
		{Name: "one", Why: "w", Package: ".", In: "Sum", Old: "a + b", New: "a - b",
			Test: test{Package: ".", Run: "^TestSum$"}},
	})
	require.NoError(t, err)
	content, err := os.ReadFile(filepath.Join(repository, "sum.go"))
	require.NoError(t, err)
	require.Equal(t, sample["sum.go"], string(content))
	left, err := filepath.Glob(filepath.Join(scratch, "inbox-mutants-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestCopyHoldsUntrackedButNotIgnoredFiles(t *testing.T) {
	copied, err := copyTree(t.Context(), sampleRepository(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, copied.remove()) })
	require.FileExists(t, filepath.Join(copied.path, "sum.go"))
	require.NoFileExists(t, filepath.Join(copied.path, "built"))
}

func TestMutantsAreConsistent(t *testing.T) {
	selected, err := choose(mutants, "")
	require.NoError(t, err)
	require.Len(t, selected, len(mutants))
	require.LessOrEqual(t, len(mutants), maxMutants, "one for each guarantee, not for each line")

	valid := mutant{Name: "n", Why: "w", Package: ".", In: "f", Old: "a", New: "b", Test: test{Package: ".", Run: "x"}}
	unfinished, same := valid, valid
	unfinished.Why, same.New = "", "a"
	for want, table := range map[string][]mutant{
		"all required":    {unfinished},
		"the same":        {same},
		"there twice":     {valid, valid},
		"no mutant match": {},
	} {
		_, err := choose(table, "")
		require.ErrorContains(t, err, want)
	}
}

// Each run of the tests tries a part of the mutants only. One that no longer applies, or that no
// longer compiles because a function it calls has changed, is found here in the same commit.
func TestEachMutantAppliesAndCompiles(t *testing.T) {
	top, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	compiler := newCompiler(t, top, filepath.Join(top, "idempotent", "redisstore"))
	var problems []error
	for _, m := range slices.Concat(mutants, simulationMutants) {
		path, _, mutated, err := m.apply(top)
		if err == nil && filepath.Ext(path) == ".go" {
			err = compiler.check(path, mutated)
		}
		if err == nil {
			err = m.Test.declared(top)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", m.Name, err))
		}
	}
	require.NoError(t, errors.Join(problems...))
}

var testName = regexp.MustCompile(`\b(Test|Fuzz)\w+`)

// declared returns an error unless the package has the tests that the expression names.
func (t test) declared(top string) error {
	expression, err := regexp.Compile(strings.Split(t.Run, "/")[0])
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(top, t.Module, t.Package, "*_test.go"))
	if err != nil {
		return err
	}
	var declared []string
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		declared = slices.AppendSeq(declared, maps.Keys(declarations(parsed)))
	}
	for _, name := range testName.FindAllString(expression.String(), -1) { // several in an alternative
		named := func(d string) bool { return strings.HasPrefix(d, name) && expression.MatchString(d) }
		if !slices.ContainsFunc(declared, named) {
			return fmt.Errorf("no test %s in %s", name, filepath.Join(t.Module, t.Package))
		}
	}
	return nil
}

func TestInvalidMutantsAreReported(t *testing.T) {
	repository := sampleRepository(t)
	compiler := newCompiler(t, repository)
	file := filepath.Join(repository, "sum.go")
	require.NoError(t, compiler.check(file, []byte(sample["sum.go"])))
	require.ErrorContains(t, compiler.check(file, []byte("package sample\n\nvar x int = \"\"\n")), "cannot use")
	require.ErrorContains(t, compiler.check(filepath.Join(repository, "other", "x.go"), nil), "no package")
	require.NoError(t, test{Package: ".", Run: "^TestSum$/sub"}.declared(repository))
	require.ErrorContains(t, test{Package: ".", Run: "^TestGone$"}.declared(repository), "no test TestGone")
}

// compiler checks the types of one package at a time, and takes all others from the build cache.
type compiler struct {
	packages map[string]listed // by directory
	exports  map[string]string // the compiled form's file, by import path
}

type listed struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
}

func newCompiler(t *testing.T, modules ...string) *compiler {
	t.Helper()
	c := &compiler{packages: map[string]listed{}, exports: map[string]string{}}
	for _, module := range modules {
		command := exec.Command("go", "list", "-deps", "-export", "-json=Dir,ImportPath,Export,GoFiles", "./...")
		command.Dir, command.Stderr = module, os.Stderr
		output, err := command.Output()
		require.NoError(t, err)
		for decoder := json.NewDecoder(bytes.NewReader(output)); decoder.More(); {
			var p listed
			require.NoError(t, decoder.Decode(&p))
			c.packages[p.Dir], c.exports[p.ImportPath] = p, p.Export
		}
	}
	return c
}

// check checks the package of a file that has another content.
func (c *compiler) check(path string, content []byte) error {
	p, found := c.packages[filepath.Dir(path)]
	if !found {
		return fmt.Errorf("no package in %s", filepath.Dir(path))
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		var source any // nil reads the file
		if full := filepath.Join(p.Dir, name); full == path {
			source = content
		}
		parsed, err := parser.ParseFile(set, filepath.Join(p.Dir, name), source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, parsed)
	}
	config := types.Config{Importer: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(c.exports[path])
	})}
	_, err := config.Check(p.ImportPath, set, files, nil)
	return err
}

func TestPartsCoverEveryMutantOnce(t *testing.T) {
	counted := map[string]int{}
	for _, part := range []string{"1/4", "2/4", "3/4", "4/4"} {
		selected, err := partOf(mutants, part)
		require.NoError(t, err)
		require.LessOrEqual(t, len(selected), len(mutants)/4+1)
		for _, m := range selected {
			counted[m.Name]++
		}
	}
	require.Len(t, counted, len(mutants))
	for name, n := range counted {
		require.Equal(t, 1, n, name)
	}
	for _, wrong := range []string{"", "0/4", "5/4", "x", "1"} {
		_, err := partOf(mutants, wrong)
		require.ErrorContains(t, err, "must be k/n", wrong)
	}
}

func sampleRepository(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for name, content := range sample {
		require.NoError(t, os.WriteFile(filepath.Join(directory, name), []byte(content), 0o644))
	}
	output, err := exec.Command("git", "-C", directory, "init", "-q").CombinedOutput()
	require.NoError(t, err, string(output))
	return directory
}
