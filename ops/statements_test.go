package ops

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

// statements lists the names of this package's SQL statements: every string
// declared outside functions that begins like SQL.
func statements(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	var found []string
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
					if beginsLikeSQL.MatchString(leftmost(value)) {
						found = append(found, values.Names[i].Name)
					}
				}
			}
		}
	}
	require.Greater(t, len(found), 20)
	return found
}

// leftmost is the string that an expression begins with.
func leftmost(value ast.Expr) string {
	switch value := value.(type) {
	case *ast.BinaryExpr:
		return leftmost(value.X)
	case *ast.BasicLit:
		text, err := strconv.Unquote(value.Value)
		if err == nil {
			return text
		}
	}
	return ""
}
