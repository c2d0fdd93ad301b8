package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// apply returns the file that the mutant changes, in its original form and with the defect.
func (m mutant) apply(top string) (path string, original, mutated []byte, err error) {
	path, from, to, err := m.place(filepath.Join(top, filepath.FromSlash(m.Package)))
	if err != nil {
		return "", nil, nil, err
	}
	if original, err = os.ReadFile(path); err != nil {
		return "", nil, nil, err
	}
	if to < 0 {
		to = len(original)
	}
	text := string(original)
	if found := strings.Count(text[from:to], m.Old); found != 1 {
		return "", nil, nil, fmt.Errorf("%q occurs %d times in %s of %s, not once", m.Old, found, m.In, m.Package)
	}
	return path, original, []byte(text[:from] + strings.Replace(text[from:to], m.Old, m.New, 1) + text[to:]), nil
}

// place finds In among the files of a directory. It returns the file and the byte range. A range
// end of -1 means the end of the file.
func (m mutant) place(directory string) (path string, from, to int, err error) {
	if path = filepath.Join(directory, m.In); filepath.Ext(m.In) != "" {
		if _, err := os.Stat(path); err == nil {
			return path, 0, -1, nil
		}
	}
	files, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		return "", 0, 0, err
	}
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return "", 0, 0, err
		}
		for name, node := range declarations(parsed) {
			if name == m.In {
				found++
				path, from, to = file, set.Position(node.Pos()).Offset, set.Position(node.End()).Offset
			}
		}
	}
	switch found {
	case 1:
		return path, from, to, nil
	case 0:
		return "", 0, 0, fmt.Errorf("%s declares no %s: name what has become of it", m.Package, m.In)
	}
	return "", 0, 0, errors.New(m.Package + " declares " + m.In + " in several files")
}

// declarations returns a file's declarations by name. A method's name has its type as a prefix.
func declarations(file *ast.File) map[string]ast.Node {
	all := map[string]ast.Node{}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			if name != "init" { // there may be several
				all[name] = d
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						all[name.Name] = s
					}
				case *ast.TypeSpec:
					all[s.Name.Name] = s
				}
			}
		}
	}
	return all
}

// receiver returns the name of a method's type, without its pointer and its type parameters.
func receiver(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
