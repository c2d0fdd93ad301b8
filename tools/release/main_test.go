package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// copied returns a repository with one commit: the files of this one as they are now.
func copied(t *testing.T) (dir, content string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "inbox")
	root := filepath.Join("..", "..")
	files := execute(t, root, nil, "git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard")
	for name := range strings.Lines(files) {
		name = strings.TrimSpace(name)
		file, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) { // deleted, and not committed
			continue
		}
		require.NoError(t, err)
		info, err := os.Stat(filepath.Join(root, name))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), file, info.Mode().Perm()))
	}
	for _, args := range [][]string{
		{"init", "--quiet"}, {"config", "user.name", "t"}, {"config", "user.email", "t@example.org"}, {"add", "--all"},
		{"-c", "commit.gpgSign=false", "commit", "--quiet", "--message", "All"},
	} {
		execute(t, dir, nil, "git", args...)
	}
	return dir, strings.TrimSpace(execute(t, dir, nil, "git", "rev-parse", "HEAD^{tree}"))
}

func execute(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	command := exec.Command(name, args...)
	command.Dir, command.Env = dir, append(environment(), env...)
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s: %s", command, output)
	return string(output)
}

// buildFlags are this test's own: what it builds then uses what the other tests have compiled.
func buildFlags(t *testing.T) string {
	t.Helper()
	info, ok := debug.ReadBuildInfo()
	require.True(t, ok)
	flags := "-mod=mod -modcacherw"
	for _, s := range info.Settings {
		if s.Key == "-race" || s.Key == "-gcflags" {
			flags += " " + s.Key + "=" + s.Value
		}
	}
	return flags
}

func TestEveryModuleIsTakenFromAProxy(t *testing.T) {
	repository, content := copied(t)
	// The module cache is shared, so each content has a version of its own.
	version := "v0.1.0-g" + content[:12]
	proxy := t.TempDir()
	tags, err := release(repository, version, proxy)
	require.NoError(t, err)
	modules := strings.Fields(execute(t, repository, nil, "git", "ls-files", "go.mod", "**/go.mod"))
	require.Len(t, tags, len(modules))
	require.Contains(t, tags, "cmd/inboxctl/"+version)
	for _, tag := range tags {
		name := filepath.Join(strings.TrimSuffix(strings.TrimSuffix(tag, version), "/"), "go.mod")
		require.NotContains(t, execute(t, repository, nil, "git", "show", tag+":"+name), "replace", tag)
	}

	const root = "github.com/gorm-inbox/inbox"
	own := strings.TrimSpace(execute(t, ".", nil, "go", "env", "GOPROXY"))
	cache := strings.TrimSpace(execute(t, ".", nil, "go", "env", "GOMODCACHE"))
	t.Cleanup(func() {
		for _, kept := range []string{"", "cache/download"} {
			ours := filepath.Join(cache, kept, filepath.Dir(root))
			_ = filepath.WalkDir(ours, func(path string, _ os.DirEntry, err error) error {
				if err == nil && strings.Contains(filepath.Base(path), version) {
					require.NoError(t, os.RemoveAll(path))
					return filepath.SkipDir
				}
				return nil
			})
		}
	})
	outside, bin := t.TempDir(), t.TempDir()
	env := []string{"GOPROXY=file://" + proxy + "/cache/download," + own, "GOSUMDB=off", "GOBIN=" + bin, "GOWORK=off",
		"GOFLAGS=" + buildFlags(t)}
	program, err := os.ReadFile("../../examples/minimal/main.go")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(outside, "main.go"), program, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "main_test.go"), []byte(`package main

import (
	"testing"

	"`+root+`/fxtest/kafkatest"
	"`+root+`/idempotent/redisstore"
)

func TestKit(t *testing.T) {
	if brokers := kafkatest.Start(t, kafkatest.Topic("orders.events", 1)).Brokers(); len(brokers) == 0 {
		t.Fatal("no broker")
	}
	store, err := redisstore.Open("redis://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}
`), 0o600))
	execute(t, outside, env, "go", "mod", "init", "example.org/orders")
	oldest := strings.TrimSpace(execute(t, filepath.Join("..", ".."), nil, "go", "list", "-m", "-f", "{{.GoVersion}}"))
	execute(t, outside, env, "go", "mod", "edit", "-go="+oldest)
	execute(t, outside, env, "go", "get", root+"@"+version, root+"/idempotent/redisstore@"+version,
		root+"/fxtest/kafkatest@"+version)
	execute(t, outside, env, "go", "build", "-o", filepath.Join(bin, "orders"), ".")
	require.Contains(t, execute(t, outside, env, "go", "version", "-m", filepath.Join(bin, "orders")),
		"dep\t"+root+"\t"+version, "the version that metrics and spans name")
	execute(t, outside, env, "go", "test", ".")
	require.Equal(t, oldest, strings.TrimSpace(execute(t, outside, env, "go", "list", "-m", "-f", "{{.GoVersion}}")),
		"nothing raised the user's version of Go")

	execute(t, outside, env, "go", "install", root+"/cmd/inboxctl@"+version)
	require.Contains(t, execute(t, outside, nil, filepath.Join(bin, "inboxctl"), "--version"), version)
}

func TestReleaseIsAllModulesOrNone(t *testing.T) {
	repository, _ := copied(t)
	_, err := release(repository, "1.0", "")
	require.EqualError(t, err, `version "1.0" is not like v1.2.3`)

	execute(t, repository, nil, "git", "tag", "tools/v0.1.0") // so the last ones cannot be tagged
	_, err = release(repository, "v0.1.0", "")
	require.ErrorContains(t, err, "already exists")
	require.Equal(t, "tools/v0.1.0\n", execute(t, repository, nil, "git", "tag"))

	name := filepath.Join(repository, "cmd", "inboxctl", "go.mod")
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	content = append(content, "\nreplace github.com/spf13/cobra => ../cobra\n"...)
	require.NoError(t, os.WriteFile(name, content, 0o600))
	execute(t, repository, nil, "git", "commit", "--quiet", "--all", "-m", "Replace cobra")
	_, err = release(repository, "v0.2.0", "")
	require.ErrorContains(t, err, "it replaces github.com/spf13/cobra")
	require.Equal(t, "tools/v0.1.0\n", execute(t, repository, nil, "git", "tag"))
}
