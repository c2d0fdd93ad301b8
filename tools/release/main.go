// Command release tags every module of a repository with one version. On main the modules find one
// another through replace directives, which `go install module@version` refuses. So the tags are on
// a chain of commits after the newest one: in each, the tagged module's go.mod requires the other
// modules at this version, and replaces none.
//
//	go run -C tools ./release -version v0.1.0
//
// It changes no branch and pushes nothing: it prints the command that does. Uncommitted changes have
// no part in it.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

func main() {
	version := flag.String("version", "", "the version, such as v0.1.0")
	repository := flag.String("repository", "..", "the repository")
	proxy := flag.String("proxy", "", "a directory to keep the modules in, usable as GOPROXY=file://DIR/cache/download")
	flag.Parse()
	tags, err := release(*repository, *version, *proxy)
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	fmt.Printf("git push --atomic origin %s\n", strings.Join(tags, " "))
}

// module is one module of the repository.
type module struct {
	dir  string // relative to the repository; "." for the first
	file *modfile.File
	sums []string // its lines of a go.sum; none until it is tagged
}

func (m *module) path() string { return m.file.Module.Mod.Path }

// tag is the name under which the go command looks for the module's version.
func (m *module) tag(version string) string { return path.Join(m.dir, version) }

// release tags each module after those that it requires, because its go.sum has their checksums.
func release(repository, version, proxy string) (tags []string, err error) {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return nil, fmt.Errorf("version %q is not like v1.2.3", version)
	}
	scratch, err := os.MkdirTemp("", "release")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	tree := filepath.Join(scratch, "tree")
	if _, err := run(repository, nil, "git", "worktree", "add", "--quiet", "--detach", tree); err != nil {
		return nil, err
	}
	defer func() {
		_, removed := run(repository, nil, "git", "worktree", "remove", "--force", tree)
		err = errors.Join(err, removed)
	}()
	modules, err := modulesOf(tree)
	if err != nil {
		return nil, err
	}
	proxy, err = filepath.Abs(cmp.Or(proxy, filepath.Join(scratch, "proxy")))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && len(tags) > 0 { // all modules or none
			_, undone := run(repository, nil, "git", append([]string{"tag", "--delete"}, tags...)...)
			err = errors.Join(err, undone)
		}
	}()
	waiting := slices.SortedFunc(maps.Values(modules), func(a, b *module) int { return strings.Compare(a.dir, b.dir) })
	for len(waiting) > 0 {
		var later []*module
		for _, m := range waiting {
			if !ready(m, modules) {
				later = append(later, m)
				continue
			}
			if tags, err = publish(tree, m, modules, version, proxy, tags); err != nil {
				return tags, fmt.Errorf("module %s: %w", m.path(), err)
			}
		}
		if len(later) == len(waiting) {
			return tags, fmt.Errorf("module %s requires itself, through others", later[0].path())
		}
		waiting = later
	}
	return tags, nil
}

// modulesOf returns the modules by their paths.
func modulesOf(tree string) (map[string]*module, error) {
	files, err := run(tree, nil, "git", "ls-files", "go.mod", "**/go.mod")
	if err != nil {
		return nil, err
	}
	modules := map[string]*module{}
	for name := range strings.Lines(string(files)) {
		name = strings.TrimSpace(name)
		content, err := os.ReadFile(filepath.Join(tree, name))
		if err != nil {
			return nil, err
		}
		file, err := modfile.Parse(name, content, nil)
		if err != nil {
			return nil, err
		}
		modules[file.Module.Mod.Path] = &module{dir: path.Dir(name), file: file}
	}
	return modules, nil
}

// ready reports whether all modules of the repository that m requires have been tagged.
func ready(m *module, modules map[string]*module) bool {
	return !slices.ContainsFunc(m.file.Require, func(r *modfile.Require) bool {
		other := modules[r.Mod.Path]
		return other != nil && other.sums == nil
	})
}

// publish commits the module's go.mod and go.sum, tags the commit, and fetches the module from it as
// the go command of a user does. It returns tags with the new one.
func publish(
	tree string, m *module, modules map[string]*module, version, proxy string, tags []string,
) ([]string, error) {
	var sums []string
	for _, r := range slices.Clone(m.file.Require) {
		if other := modules[r.Mod.Path]; other != nil {
			sums = append(sums, other.sums...)
			if err := m.file.AddRequire(r.Mod.Path, version); err != nil {
				return tags, err
			}
		}
	}
	for _, r := range slices.Clone(m.file.Replace) {
		if modules[r.Old.Path] == nil {
			return tags, fmt.Errorf("it replaces %s, which is not of this repository: no user could install it", r.Old.Path)
		}
		if err := m.file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return tags, err
		}
	}
	m.file.Cleanup()
	if err := rewrite(filepath.Join(tree, m.dir), m.file, sums); err != nil {
		return tags, err
	}
	message := "Release " + m.tag(version)
	if _, err := run(tree, nil, "git", "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "commit", "--quiet",
		"--all", "--allow-empty", "-m", message); err != nil {
		return tags, err
	}
	if _, err := run(tree, nil, "git", "-c", "tag.gpgSign=false", "tag", m.tag(version)); err != nil {
		return tags, err
	}
	tags = append(tags, m.tag(version))
	fetched, err := fetch(tree, m.path()+"@"+version, proxy)
	if err != nil {
		return tags, err
	}
	m.sums = []string{
		fmt.Sprintf("%s %s %s\n", m.path(), version, fetched.Sum),
		fmt.Sprintf("%s %s/go.mod %s\n", m.path(), version, fetched.GoModSum),
	}
	return tags, nil
}

func rewrite(dir string, file *modfile.File, sums []string) error {
	content, err := file.Format()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), content, 0o644); err != nil || len(sums) == 0 {
		return err
	}
	name := filepath.Join(dir, "go.sum")
	known, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	lines := slices.Collect(strings.Lines(string(known) + strings.Join(sums, "")))
	slices.Sort(lines)
	return os.WriteFile(name, []byte(strings.Join(slices.Compact(lines), "")), 0o644)
}

// checksums is what `go mod download -json` says of a module.
type checksums struct{ Sum, GoModSum, Error string }

// fetch gets a module from its tag in the local repository, as if it had been pushed. The cache then
// has the files of a proxy.
func fetch(tree, module, cache string) (sums checksums, err error) {
	host, _, _ := strings.Cut(module, "@")
	origin := strings.Join(strings.Split(host, "/")[:3], "/")
	said, err := run(os.TempDir(), []string{
		"GOPROXY=direct", "GOFLAGS=-modcacherw", "GONOSUMDB=" + origin, "GOMODCACHE=" + cache, "GOWORK=off",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url." + tree + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + origin,
	}, "go", "mod", "download", "-json", module)
	if decoded := json.Unmarshal(said, &sums); sums.Error != "" {
		return sums, errors.New(sums.Error)
	} else if err == nil {
		err = decoded
	}
	return sums, err
}

// run runs a program and returns its standard output.
func run(dir string, env []string, name string, args ...string) ([]byte, error) {
	command := exec.Command(name, args...)
	command.Dir, command.Env = dir, append(environment(), env...)
	output, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, exit.Stderr)
	}
	return output, err
}

// environment is that of this process without what would lead git to another repository: git itself
// sets such variables for its hooks.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains([]string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX",
			"GIT_OBJECT_DIRECTORY"}, name)
	})
}
