package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// tree is a copy of the working tree that may be changed.
type tree struct{ path string }

// copyTree copies what git tracks or would track. That includes uncommitted files and excludes
// build results.
func copyTree(ctx context.Context, directory string) (*tree, error) {
	top, err := git(ctx, directory, "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	root := strings.TrimSpace(top)
	listed, err := git(ctx, root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp("", "inbox-mutants-")
	if err != nil {
		return nil, err
	}
	t := &tree{path: path}
	for name := range strings.SplitSeq(strings.TrimRight(listed, "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(path, name)); err != nil {
			return nil, errors.Join(fmt.Errorf("copy %s: %w", name, err), t.remove())
		}
	}
	return t, nil
}

func git(ctx context.Context, directory string, arguments ...string) (string, error) {
	output, err := exec.CommandContext(ctx, "git", append([]string{"-C", directory}, arguments...)...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", arguments[0], err)
	}
	return string(output), nil
}

func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // tracked, but deleted in the working tree
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}

func (t *tree) remove() error { return os.RemoveAll(t.path) }

// check returns nil when the mutant's test passes without the defect and fails with it. It returns
// a leftOut when the test could not run completely because a server is missing. said is what the soak has found, if
// that was the test.
func (t *tree) check(ctx context.Context, m mutant, baselines map[string]baseline) (said string, err error) {
	key := fmt.Sprint(m.Test)
	whole, known := baselines[key]
	if !known {
		whole = t.baseline(ctx, m.Test)
		baselines[key] = whole
	}
	if whole.err != nil {
		return "", whole.err
	}
	path, original, mutated, err := m.apply(t.path)
	if err != nil {
		return "", fmt.Errorf("does not apply: %w", err)
	}
	if err := os.WriteFile(path, mutated, 0o644); err != nil {
		return "", err
	}
	output, failed := t.goTest(ctx, m.Test, whole.patience(m.Test))
	if err := os.WriteFile(path, original, 0o644); err != nil {
		return "", err
	}
	if failed == nil && whole.leftOut != nil {
		return "", whole.leftOut
	}
	if line := soakLine.FindStringSubmatch(output); line != nil {
		said = line[1]
	}
	return said, judge(output, failed)
}

// soakLine matches what the soak's judge has found.
var soakLine = regexp.MustCompile(`BROKEN: (.+)`)

// baseline is the result of a test without any defect.
type baseline struct {
	err     error
	leftOut *leftOut      // nil if all of it ran
	took    time.Duration // compiling not included
}

// leftOut is the verdict on a mutant whose test needs a missing server.
type leftOut struct{ what string }

func (e *leftOut) Error() string { return "LEFT OUT: " + e.what }

// leftOutLine matches the output of a test that is skipped because a server is missing.
var leftOutLine = regexp.MustCompile(`LEFT OUT: (.+)`)

// baseline runs a test without a defect. There must be tests, and all must pass.
func (t *tree) baseline(ctx context.Context, test test) baseline {
	output, err := t.goTest(ctx, test, test.limit())
	took := test.limit()
	if line := passedLine.FindStringSubmatch(output); line != nil {
		took, _ = time.ParseDuration(line[1]) // go test wrote it
	}
	var without *leftOut
	if line := leftOutLine.FindStringSubmatch(output); line != nil {
		without = &leftOut{strings.TrimSpace(line[1])}
	}
	switch {
	case err != nil:
		err = fmt.Errorf("fails without the defect: %w\n%s", err, end(output))
	case !strings.Contains(output, "--- PASS") && without != nil:
		err = without
	case !strings.Contains(output, "--- PASS"):
		err = fmt.Errorf("no test ran and passed without the defect (-run %s)\n%s", test.Run, end(output))
	}
	return baseline{err, without, took}
}

// passedLine matches the last line of go test, which says how long the tests took.
var passedLine = regexp.MustCompile(`(?m)^ok\s+\S+\s+([0-9.]+s)`)

// patience is how long the test may take with a defect. If it takes much longer than without one,
// it waits for something that will never happen. That proves that it notices, so there is no need
// to wait for the test's own timeout.
func (b baseline) patience(test test) time.Duration {
	return min(test.limit(), 5*b.took.Round(time.Second)+10*time.Second)
}

// judge requires that a test failed. A compile error or a crash before any test means that the
// mutant is bad and proves nothing. Go prints "--- FAIL" only for a failed test. A panic or a
// timeout inside a running test is printed with it, or with the name of the running test.
func judge(output string, failed error) error {
	switch {
	case failed == nil:
		return errors.New("survived: no test noticed")
	case strings.Contains(output, "[build failed]") || strings.Contains(output, "[setup failed]"):
		return fmt.Errorf("does not compile\n%s", end(output))
	case strings.Contains(output, "--- FAIL"):
		return nil
	case strings.Contains(output, "panic: test timed out after") && strings.Contains(output, "running tests:"):
		return nil
	}
	return fmt.Errorf("no test failed, the command did: %w\n%s", failed, end(output))
}

// goTest runs a test in the copy. All processes that the test starts end with it.
func (t *tree) goTest(ctx context.Context, test test, limit time.Duration) (output string, err error) {
	// The extra time is for compiling. go test itself enforces the tests' limit.
	ctx, cancel := context.WithTimeout(ctx, limit+3*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "go", "test", "-v", "-count=1", "-timeout", limit.String(), "-run", test.Run,
		test.Package)
	command.Dir = filepath.Join(t.path, filepath.FromSlash(test.Module))
	command.Env = append(os.Environ(), test.Env...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	combined, err := command.CombinedOutput()
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return string(combined), err
}

// end returns the last lines of an output, indented to stand out from the report.
func end(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if len(lines) > 15 {
		lines = lines[len(lines)-15:]
	}
	return "          | " + strings.Join(lines, "\n          | ")
}
