package sqltest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var beginsLikeSQL = regexp.MustCompile(`^\s*(WITH|SELECT|INSERT|UPDATE|DELETE)\b`)

// Statements lists the names of the tested package's SQL statements: every string
// declared outside functions, alone or as a field, that begins like SQL and is no
// part of another.
func Statements(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	parts, declared := map[string]bool{}, []string{}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), entry.Name(), nil, 0)
		require.NoError(t, err)
		for _, declaration := range file.Decls {
			general, ok := declaration.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				values, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for i, value := range values.Values {
					for name, text := range texts(values.Names[i].Name, value) {
						if beginsLikeSQL.MatchString(leftmost(text)) {
							declared = append(declared, name)
						}
					}
					ast.Inspect(value, func(node ast.Node) bool {
						if used, ok := node.(*ast.Ident); ok {
							parts[used.Name] = true
						}
						return true
					})
				}
			}
		}
	}
	var found []string
	for _, name := range declared {
		if !parts[name] {
			found = append(found, name)
		}
	}
	require.Greater(t, len(found), 20)
	return found
}

// texts are the strings that a declaration gives: itself, or its fields.
func texts(name string, value ast.Expr) map[string]ast.Expr {
	literal, ok := value.(*ast.CompositeLit)
	if !ok {
		return map[string]ast.Expr{name: value}
	}
	fields := map[string]ast.Expr{}
	for _, element := range literal.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			if field, ok := pair.Key.(*ast.Ident); ok {
				fields[name+"."+field.Name] = pair.Value
			}
		}
	}
	return fields
}

// leftmost is the string that an expression begins with.
func leftmost(value ast.Expr) string {
	switch value := value.(type) {
	case *ast.BinaryExpr:
		return leftmost(value.X)
	case *ast.CallExpr:
		if len(value.Args) > 0 {
			return leftmost(value.Args[0])
		}
	case *ast.BasicLit:
		text, err := strconv.Unquote(value.Value)
		if err == nil {
			return text
		}
	}
	return ""
}
