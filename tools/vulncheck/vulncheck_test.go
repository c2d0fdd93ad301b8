// Package vulncheck tests scripts/vulncheck with databases of its own.
package vulncheck

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// database holds what govulncheck asks for (https://go.dev/doc/security/vuln/database):
// one vulnerability, in a function of the standard library.
var database = map[string]string{
	"index/db.json":      `{"modified":"2026-01-01T00:00:00Z"}`,
	"index/modules.json": `[{"path":"stdlib","vulns":[{"id":"GO-2026-0001","modified":"2026-01-01T00:00:00Z"}]}]`,
	"ID/GO-2026-0001.json": `{"schema_version":"1.3.1","id":"GO-2026-0001","modified":"2026-01-01T00:00:00Z","published":"2026-01-01T00:00:00Z",
		"summary":"A made up one","details":"A made up one.","affected":[{"package":{"name":"stdlib","ecosystem":"Go"},
		"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}],"ecosystem_specific":{"imports":[{"path":"strings","symbols":["Title"]}]}}]}`,
}

func TestReachableVulnerabilityFails(t *testing.T) {
	here := "VULNDB=file://" + write(t, database)
	nowhere := "HTTPS_PROXY=http://" + closedAddress(t)
	for name, c := range map[string]struct {
		database, code string
		ok             bool
		want           string
		actions        string
	}{
		"reached":                            {here, `strings.Title("a")`, false, "GO-2026-0001", ""},
		"not reached":                        {here, `strings.ToUpper("a")`, true, "", ""},
		"no database":                        {nowhere, `strings.Title("a")`, true, "!!!!!! vulncheck: NOT CHECKED, the database cannot be reached: ", ""},
		"no database in the repository's CI": {nowhere, `strings.ToUpper("a")`, false, "NOT CHECKED", "true"},
		"bad code":                           {here, `strings.Nothing("a")`, false, "undefined: strings.Nothing", ""},
	} {
		t.Run(name, func(t *testing.T) {
			module := write(t, map[string]string{
				"go.mod":  "module example.com/p\n\ngo 1.24\n",
				"main.go": "package main\n\nimport \"strings\"\n\nfunc main() { println(" + c.code + ") }\n",
			})
			command := exec.Command(filepath.Join("..", "..", "scripts", "vulncheck"), govulncheck(t), module)
			command.Env = append(os.Environ(), c.database, "GITHUB_ACTIONS="+c.actions)
			output, err := command.CombinedOutput()
			if (err == nil) != c.ok || !strings.Contains(string(output), c.want) {
				t.Fatalf("%v, wanted ok=%v and %q in:\n%s", err, c.ok, c.want, output)
			}
			if c.ok && strings.Count(string(output), "\n") > 1 {
				t.Fatalf("more than one line:\n%s", output)
			}
		})
	}
}

func govulncheck(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "govulncheck")
	if output, err := exec.Command("go", "build", "-o", path,
		"golang.org/x/vuln/cmd/govulncheck").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return path
}

// closedAddress is one at which nothing listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	return listener.Addr().String()
}

func write(t *testing.T, files map[string]string) (directory string) {
	t.Helper()
	directory = t.TempDir()
	for name, content := range files {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}
