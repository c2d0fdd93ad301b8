package options

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// entry is one option or one field of a config, as it is declared.
type entry struct {
	name string
	doc  string // in Markdown
	// signature is its parameters, for a function.
	signature string
}

// source is a package's declarations.
type source struct {
	pkg *doc.Package
	set *token.FileSet
}

func load(directory, path string) (source, error) {
	names, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		return source{}, err
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			return source{}, err
		}
		files = append(files, file)
	}
	pkg, err := doc.NewFromFiles(set, files, path, doc.PreserveAST)
	if err != nil {
		return source{}, fmt.Errorf("%s: %w", directory, err)
	}
	return source{pkg, set}, nil
}

// functions are those that return the type, in the alphabet's order.
func (s source) functions(typ string) []entry {
	var entries []entry
	for _, t := range s.pkg.Types {
		if t.Name != typ {
			continue
		}
		for _, f := range t.Funcs {
			entries = append(entries, s.function(f))
		}
	}
	return entries
}

// settings are the fields of inbox.Options, with those of the structs in it, by their
// paths, such as "Processor.MaxRetries".
func settings(root string) ([]entry, error) {
	own, err := load(root, module)
	if err != nil {
		return nil, err
	}
	var all []entry
	for _, e := range own.fields("Options") {
		folder := strings.ToLower(e.name)
		if !slices.Contains([]string{"processor", "acceptor", "cleanup"}, folder) {
			all = append(all, e)
			continue
		}
		of, err := load(filepath.Join(root, folder), module+"/"+folder)
		if err != nil {
			return nil, err
		}
		for _, field := range of.fields("Options") {
			field.name = e.name + "." + field.name
			all = append(all, field)
		}
	}
	return all, nil
}

func (s source) function(f *doc.Func) entry {
	var parameters []string
	for _, field := range f.Decl.Type.Params.List {
		for _, name := range field.Names {
			parameters = append(parameters, name.Name+" "+s.text(field.Type))
		}
	}
	return entry{f.Name, s.markdown(f.Doc), "(" + strings.Join(parameters, ", ") + ")"}
}

// fields are a struct's, in their order. Of several that share a comment the
// first has it.
func (s source) fields(typ string) []entry {
	var entries []entry
	for _, t := range s.pkg.Types {
		if t.Name != typ {
			continue
		}
		for _, field := range t.Decl.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType).Fields.List {
			for _, name := range field.Names {
				if !name.IsExported() {
					continue
				}
				if field.Doc == nil && len(entries) > 0 {
					entries[len(entries)-1].name += ", " + name.Name
					continue
				}
				entries = append(entries, entry{name: name.Name, doc: s.markdown(field.Doc.Text())})
			}
		}
	}
	return entries
}

func (s source) markdown(text string) string {
	printer := s.pkg.Printer()
	printer.HeadingLevel = 4
	printer.DocLinkBaseURL = "https://pkg.go.dev"
	return strings.TrimSpace(string(printer.Markdown(s.pkg.Parser().Parse(text))))
}

func (s source) text(node ast.Node) string {
	from, to := s.set.Position(node.Pos()), s.set.Position(node.End())
	file, err := os.ReadFile(from.Filename)
	if err != nil {
		return ""
	}
	return string(file[from.Offset:to.Offset])
}
