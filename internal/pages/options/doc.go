// Package options makes docs/options.md from the code: the options' comments, their defaults, and their limits.
package options
