// Package pages holds the code of the pages in docs, a package for each page,
// and the tests that keep the pages true: their code is what is compiled and
// run here, their tables are what the code says, their links lead somewhere.
//
// Before a block of code a page names where it is from:
//
//	<!-- code: examples/pages/renaming/renaming.go#legacy -->
//
// That is the region between //page:begin legacy and //page:end in the file, or
// its function legacy, less the indentation; without #name it is the whole file. To write the blocks
// anew after a change of the code, and the pages that are made of it:
//
//	go test -C examples ./pages ./pages/options -update
package pages
