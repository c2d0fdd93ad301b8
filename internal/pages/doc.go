// Package pages keeps the pages in docs true: their code is compiled and run in examples, their tables match the code,
// their links lead somewhere. It is part of this module, and not of examples: go test takes a result from its cache
// although a file has changed that lies outside of the module.
//
// Before a block of code a page names where it is from:
//
//	<!-- code: examples/pages/renaming/renaming.go#legacy -->
//
// That is the region between //page:begin legacy and //page:end in the file, or its function legacy, less the
// indentation; without #name it is the whole file. To rewrite the blocks after a change of the code, and the generated
// pages:
//
//	go test ./internal/pages ./internal/pages/options -update
package pages
