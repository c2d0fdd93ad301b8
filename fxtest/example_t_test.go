package fxtest_test

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// exampleT replaces the *testing.T that examples do not get.
type exampleT struct {
	testing.TB
	cleanups []func()
}

func newExampleT() *exampleT { return &exampleT{} }

func (t *exampleT) Helper()                        {}
func (t *exampleT) Name() string                   { return "Example" }
func (t *exampleT) Logf(string, ...any)            {}
func (t *exampleT) Errorf(format string, a ...any) { fmt.Printf(format+"\n", a...) }
func (t *exampleT) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (t *exampleT) FailNow()                       { panic("the example failed") }
func (t *exampleT) Context() context.Context       { return context.Background() }
func (t *exampleT) Cleanup(f func())               { t.cleanups = append(t.cleanups, f) }

func (t *exampleT) TempDir() string {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (t *exampleT) end() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}
