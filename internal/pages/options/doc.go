// Package options makes docs/options.md of the code: of the options' comments,
// their defaults, and what they refuse.
package options
