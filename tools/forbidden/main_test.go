package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestForbiddenIsFoundOnlyInCode(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		want   string // what follows the file's name; "" is nothing
	}{
		"sleep":            {"package p\nimport \"time\"\nfunc f() { time.Sleep(1) }\n", ":3: time.Sleep"},
		"sleep as a value": {"package p\nimport \"time\"\nvar f = time.Sleep\n", ":3: time.Sleep"},
		"renamed import":   {"package p\nimport clock \"time\"\nfunc f() { clock.Sleep(1) }\n", ":3: time.Sleep"},
		"assert": {"package p\nimport \"github.com/stretchr/testify/assert\"\nvar _ = assert.True\n",
			":2: testify/assert"},
		"require":            {"package p\nimport \"github.com/stretchr/testify/require\"\nvar _ = require.True\n", ""},
		"another's sleep":    {"package p\nimport \"time\"\nvar _ time.Duration\nfunc f(bed interface{ Sleep() }) { bed.Sleep() }\n", ""},
		"long line":          {"package p\n\nvar a" + strings.Repeat("a", 120) + " int\n", ":3: a line of 129 columns"},
		"long comment":       {"package p\n\n// " + strings.Repeat("a ", 60) + "\n", ":3: a line of"},
		"long text":          {"package p\n\nvar s = `a\n" + strings.Repeat("a ", 61) + "\na`\n", ""},
		"text and a comment": {"package p\n\n// time.Sleep is forbidden.\nvar s = \"time.Sleep(1)\"\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.go")
			if err := os.WriteFile(path, []byte(c.source), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			found, err := check(strings.NewReader(path+"\n"), &out)
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" && (found != 0 || out.Len() != 0) || c.want != "" &&
				(found != 1 || !strings.HasPrefix(out.String(), path+c.want)) {
				t.Fatalf("found %d: %q, want %q", found, out.String(), c.want)
			}
		})
	}
}

func TestNoFilesIsAnError(t *testing.T) {
	if _, err := check(strings.NewReader(""), &strings.Builder{}); err == nil {
		t.Fatal("checking nothing passed")
	}
}
