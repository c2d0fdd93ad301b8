// Command forbidden finds what the house rules forbid and no linter knows:
//
//   - time.Sleep: it cannot be cancelled, and a test that sleeps is slow on one
//     machine and flaky on another. Wait on a signal, a timer beside a context,
//     or a condition with a deadline.
//   - testify's assert: a failed expectation must end the test (require does).
//   - lines of more than 120 columns, but for those with a text in them.
//
// It reads the names of Go files from standard input, one a line, prints
// file:line: what, and exits with 1 when it finds something.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"strconv"
	"unicode/utf8"
)

// maxColumns is how long a line may be.
const maxColumns = 120

func main() {
	found, err := check(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "forbidden:", err)
		os.Exit(1)
	}
	if found > 0 {
		os.Exit(1)
	}
}

func check(names io.Reader, out io.Writer) (found int, err error) {
	lines := bufio.NewScanner(names)
	files := 0
	for lines.Scan() {
		files++
		n, err := checkFile(lines.Text(), out)
		if err != nil {
			return found, err
		}
		found += n
	}
	if err := lines.Err(); err != nil {
		return found, err
	}
	if files == 0 {
		return 0, fmt.Errorf("no files named on standard input")
	}
	return found, nil
}

func checkFile(name string, out io.Writer) (found int, err error) {
	source, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	report := func(at token.Pos, what string) {
		found++
		position := set.Position(at)
		fmt.Fprintf(out, "%s:%d: %s\n", position.Filename, position.Line, what)
	}
	timeName := ""
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return found, err
		}
		switch path {
		case "time":
			timeName = "time"
			if spec.Name != nil {
				timeName = spec.Name.Name
			}
		case "github.com/stretchr/testify/assert":
			report(spec.Pos(), "testify/assert: use require")
		}
	}
	texts := map[int]bool{} // lines with a part of one
	ast.Inspect(file, func(node ast.Node) bool {
		if text, ok := node.(*ast.BasicLit); ok && text.Kind == token.STRING {
			for line := set.Position(text.Pos()).Line; line <= set.Position(text.End()).Line; line++ {
				texts[line] = true
			}
		}
		if selector, ok := node.(*ast.SelectorExpr); ok && selector.Sel.Name == "Sleep" {
			if pkg, ok := selector.X.(*ast.Ident); ok && timeName != "" && pkg.Name == timeName {
				report(selector.Pos(), "time.Sleep: wait on a signal, a timer beside a context, or a condition")
			}
		}
		return true
	})
	for i, line := range bytes.Split(source, []byte("\n")) {
		if columns := utf8.RuneCount(line); columns > maxColumns && !texts[i+1] {
			report(set.File(file.Pos()).LineStart(i+1), fmt.Sprintf("a line of %d columns: at most %d", columns, maxColumns))
		}
	}
	return found, nil
}
