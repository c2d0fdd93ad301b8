package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestReportOfRealRuns(t *testing.T) {
	const head = "package p\n\nimport \"testing\"\n\n"
	for name, c := range map[string]struct {
		tests  string
		ok     bool
		want   []string
		unsaid []string
	}{
		"passing": {
			tests: head + "func TestA(t *testing.T) { t.Log(\"chatter\"); t.Run(\"b\", func(t *testing.T) {}) }\n",
			ok:    true,
			want: []string{"    --- PASS: TestA/b (", "--- PASS: TestA (", "ok  \texample.com/p",
				"tests: 2 passed, 0 failed, 0 left out\n"},
			unsaid: []string{"chatter", "=== RUN"},
		},
		"failing": {
			tests: head + "func TestA(t *testing.T) { t.Fatal(\"the reason\") }\nfunc TestB(t *testing.T) {}\n",
			want: []string{"--- FAIL: TestA (", "the reason", "--- PASS: TestB (", "FAIL\texample.com/p",
				"tests: 1 passed, 1 failed, 1 packages failed, 0 left out\n"},
		},
		"failing within": {
			tests: head + "func TestA(t *testing.T) { t.Run(\"b\", func(t *testing.T) { t.Error(\"the reason\") }) }\nfunc TestC(t *testing.T) {}\n",
			want: []string{"FAILED: example.com/p TestA/b\n    p_test.go:5: the reason\n" +
				"tests: 1 passed, 2 failed, 1 packages failed, 0 left out\n"},
			unsaid: []string{"FAILED: example.com/p TestA\n"},
		},
		"left out": {
			tests: head +
				"func TestA(t *testing.T) { t.Skip(\"LEFT OUT: Redis (no redis-server)\") }\nfunc TestB(t *testing.T) {}\n" +
				"func TestC(t *testing.T) { for _, s := range []string{\"Redis (no redis-server)\", \"Kafka (no Java)\"} { t.Run(s, func(t *testing.T) { t.Skip(\"LEFT OUT: \" + s) }) } }\n" +
				"func TestD(t *testing.T) { t.Skip(\"not today\") }\n",
			ok: true,
			want: []string{"--- SKIP: TestA (", "LEFT OUT: Redis", "not today",
				"tests: 2 passed, 0 failed, 4 left out: Kafka (no Java); Redis (no redis-server); TestD\n"},
		},
		"crashing": {
			tests: head + "func TestA(t *testing.T) { done := make(chan int); go func() { panic(\"elsewhere\") }(); <-done }\n",
			want: []string{"--- FAIL: TestA (", "panic: elsewhere",
				"tests: 0 passed, 1 failed, 1 packages failed, 0 left out\n"},
		},
		"crashing after the test that was named last": {
			tests: "package p\n\nimport (\n\t\"testing\"\n\t\"time\"\n)\n\n" +
				"func TestA(t *testing.T) { t.Parallel(); go func() { time.Sleep(time.Second); panic(\"elsewhere\") }(); select {} }\n" +
				"func TestB(t *testing.T) { t.Parallel() }\n",
			want: []string{"--- FAIL: TestA (", "--- PASS: TestB (", "panic: elsewhere",
				"tests: 1 passed, 1 failed, 1 packages failed, 0 left out\n"},
		},
		"exiting": {
			tests: "package p\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestA(t *testing.T) { os.Exit(3) }\n",
			want:  []string{"--- FAIL: TestA (", "1 packages failed, 0 left out\n"},
		},
		"not compiling": {
			tests: head + "func TestA(t *testing.T) { undefined() }\n",
			want:  []string{"undefined: undefined", "FAILED: example.com/p without a test that failed\n", "tests: 0 passed, 0 failed, 1 packages failed, 0 left out\n"},
		},
		"without tests": {
			tests: "package p\n",
			want:  []string{"tests: 0 passed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			for file, content := range map[string]string{"go.mod": "module example.com/p\n\ngo 1.24\n", "p.go": "package p\n",
				"p_test.go": c.tests} {
				if err := os.WriteFile(filepath.Join(directory, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			command := exec.Command("go", "test", "-json", "./...")
			command.Dir = directory
			output, _ := command.Output() // its status is the report's to find out
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(string(output))); err != nil {
				t.Fatal(err)
			}
			if ok := r.close(); ok != c.ok {
				t.Fatalf("ok is %v:\n%s", ok, out.String())
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Fatalf("no %q in:\n%s", want, out.String())
				}
			}
			for _, unsaid := range c.unsaid {
				if strings.Contains(out.String(), unsaid) {
					t.Fatalf("%q in:\n%s", unsaid, out.String())
				}
			}
		})
	}
}
