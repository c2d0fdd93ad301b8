//go:build !cgo

package inboxtest

const cgo = false
