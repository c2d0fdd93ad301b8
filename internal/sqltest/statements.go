package sqltest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var beginsLikeSQL = regexp.MustCompile(`^\s*(WITH|SELECT|INSERT|UPDATE|DELETE)\b`)

// Statements returns the names of the SQL statements in the tested package and in the directories
// beside. A statement is a string declared outside of functions, alone or as a field, that begins
// like SQL and is not part of another one.
func Statements(t testing.TB, beside ...string) []string {
	t.Helper()
	var files []string
	for _, directory := range append(beside, ".") {
		found, err := filepath.Glob(filepath.Join(directory, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, found, directory)
		files = append(files, found...)
	}
	parts, declared := map[string]bool{}, []string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
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

// texts returns the strings of a declaration: its value, or its fields.
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

// leftmost returns the string that an expression begins with.
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
