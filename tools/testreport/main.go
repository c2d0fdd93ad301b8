// Command testreport reads the output of `go test -json` and prints one line
// for each test and package as `go test -v` has it, everything that a failed
// one said, and at the end what failed once more, how many there were and what
// was left out. It exits with 1 when a test or package failed, or when no test
// passed.
//
//	go test -json ./... | testreport
//
// A skipped test that says "LEFT OUT: a server (the reason)" has that in the
// last line, once however many tests say it; any other has its name there.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	r := newReport(os.Stdout)
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	if !r.close() {
		os.Exit(1)
	}
}

// event is what go test says (see go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build event
	Test       string
	Output     string
	Elapsed    float64
}

type report struct {
	out                     io.Writer
	said                    map[string][]string // by package and test, until it ends
	late                    map[string][]string // by package, in the name of tests that had ended
	running                 map[string]bool     // tests that have begun, by package and test
	passed, failed, skipped int
	brokenPackages          int
	leftOut                 map[string]bool // what the skipped tests were about
	failures                []string        // of tests without a failed subtest: the name, and what it said last
	failedWithin            map[string]bool // tests with a subtest that failed, by package and test
}

// lastWords is how many lines of a failed test are repeated at the end.
const lastWords = 12

func newReport(out io.Writer) *report {
	return &report{out: out, said: map[string][]string{}, late: map[string][]string{}, running: map[string]bool{},
		leftOut: map[string]bool{}, failedWithin: map[string]bool{}}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
				r.take(e)
			} else {
				fmt.Fprint(r.out, line) // go's own, such as a download
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) take(e event) {
	key := e.Package + "\x00" + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "run":
		r.running[key] = true
	case "output":
		r.said[key] = append(r.said[key], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(e)
		}
		delete(r.said, key)
		delete(r.running, key)
	}
}

func (r *report) endTest(e event) {
	verdicts := map[string]string{"pass": "PASS", "fail": "FAIL", "skip": "SKIP"}
	depth := strings.Repeat("    ", strings.Count(e.Test, "/"))
	fmt.Fprintf(r.out, "%s--- %s: %s (%.2fs)\n", depth, verdicts[e.Action], e.Test, e.Elapsed)
	switch e.Action {
	case "pass":
		r.passed++
		r.keepLate(e)
	case "fail":
		r.failed++
		r.repeat(e, r.quote(e))
	case "skip":
		r.skipped++
		r.leftOut[r.reason(e)] = true
		r.quote(e)
	}
}

// reason is what a skipped test has left out; its name if it does not say.
func (r *report) reason(e event) string {
	for _, line := range r.said[e.Package+"\x00"+e.Test] {
		if _, what, found := strings.Cut(line, "LEFT OUT: "); found {
			return fmt.Sprintf("%.200s", strings.TrimSpace(what))
		}
	}
	return e.Test
}

// quote prints and returns what a test said itself, without go test's own lines about it.
func (r *report) quote(e event) (said []string) {
	for _, line := range r.said[e.Package+"\x00"+e.Test] {
		if text := strings.TrimSpace(line); !strings.HasPrefix(text, "--- ") && !strings.HasPrefix(text, "=== ") {
			fmt.Fprint(r.out, line)
			said = append(said, line)
		}
	}
	return said
}

// repeat keeps a failure for the end, where it is found among thousands of lines. A subtest ends before its test:
// what failed by its subtests alone is not repeated.
func (r *report) repeat(e event, said []string) {
	for at := range e.Test {
		if e.Test[at] == '/' {
			r.failedWithin[e.Package+"\x00"+e.Test[:at]] = true
		}
	}
	if r.failedWithin[e.Package+"\x00"+e.Test] {
		return
	}
	r.failures = append(r.failures, fmt.Sprintf("FAILED: %s %s\n%s", e.Package, e.Test,
		strings.Join(said[max(0, len(said)-lastWords):], "")))
}

// keepLate keeps what came in the name of a test after its end: go test gives what a
// dying process says to the test that it named last.
func (r *report) keepLate(e event) {
	lines := r.said[e.Package+"\x00"+e.Test]
	ended := slices.IndexFunc(lines, func(line string) bool {
		return strings.HasPrefix(strings.TrimLeft(line, " "), "--- PASS: "+e.Test+" (")
	})
	r.late[e.Package] = append(r.late[e.Package], lines[ended+1:]...)
}

// endPackage prints the package's own line. A package that fails may have
// crashed: then its last words count, and tests that never ended have failed.
func (r *report) endPackage(e event) {
	for key := range r.running {
		if name, ok := strings.CutPrefix(key, e.Package+"\x00"); ok && name != "" {
			r.endTest(event{Action: "fail", Package: e.Package, Test: name})
			delete(r.said, key)
			delete(r.running, key)
		}
	}
	if e.Action == "fail" {
		r.brokenPackages++
		fmt.Fprint(r.out, strings.Join(r.late[e.Package], ""))
		itself := "FAILED: " + e.Package + " "
		if !slices.ContainsFunc(r.failures, func(f string) bool { return strings.HasPrefix(f, itself) }) {
			r.failures = append(r.failures, itself+"without a test that failed\n")
		}
	}
	for _, line := range r.said[e.Package+"\x00"] {
		if e.Action == "fail" || strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "? ") {
			fmt.Fprint(r.out, line)
		}
	}
	if e.Action == "fail" && len(r.said[e.Package+"\x00"]) == 0 {
		fmt.Fprintf(r.out, "FAIL\t%s\n", e.Package)
	}
}

// close prints what failed and the count, and says whether all is well.
func (r *report) close() bool {
	fmt.Fprint(r.out, strings.Join(r.failures, ""))
	fmt.Fprintf(r.out, "tests: %d passed, %d failed", r.passed, r.failed)
	if r.brokenPackages > 0 {
		fmt.Fprintf(r.out, ", %d packages failed", r.brokenPackages)
	}
	fmt.Fprintf(r.out, ", %d left out", r.skipped)
	if r.skipped > 0 {
		fmt.Fprintf(r.out, ": %s", strings.Join(slices.Sorted(maps.Keys(r.leftOut)), "; "))
	}
	fmt.Fprintln(r.out)
	return r.failed == 0 && r.brokenPackages == 0 && r.passed > 0
}
