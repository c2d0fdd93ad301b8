package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Options are what a Command tells its Environment.
type Options struct {
	Name   string
	Server string // a DSN of PostgreSQL, MySQL or MariaDB; empty: SQLite
	Seed   uint64
	Keep   bool
	Out    io.Writer
}

// Environment is where one run keeps its data: a directory and, with a server, schemas or databases. All
// of it is removed at the end. It is not safe for concurrent use.
type Environment struct {
	Options
	// Run names the run, for whatever else it creates: letters and digits.
	Run string
	Dir string
	// Apart gives each Database of PostgreSQL a database of its own. Otherwise it is a schema.
	Apart  bool
	Random *rand.Rand // repeatable by the seed

	shown   time.Time // the last progress
	created []string  // on the server
	cleanup []func(ctx context.Context, keep bool) error
}

// NewEnvironment creates the directory. Close removes it.
func NewEnvironment(o Options) (*Environment, error) {
	dir, err := os.MkdirTemp("", "inbox-"+o.Name+"-")
	if err != nil {
		return nil, err
	}
	return &Environment{Options: o, Run: fmt.Sprintf("%x", time.Now().UnixNano()), Dir: dir,
		Random: rand.New(rand.NewPCG(o.Seed, o.Seed))}, nil
}

// File returns the path of a file in the directory.
func (e *Environment) File(name string) string { return filepath.Join(e.Dir, name) }

// Cleanup registers a function that Close calls, the last registered first. With keep it leaves data behind.
func (e *Environment) Cleanup(f func(ctx context.Context, keep bool) error) {
	e.cleanup = append(e.cleanup, f)
}

// Close closes everything that was opened in the environment and removes its data unless keep is true.
func (e *Environment) Close(ctx context.Context, keep bool) error {
	if len(e.cleanup) == 0 {
		keep = false // nothing was created, so there is nothing to keep
	}
	if keep {
		e.Say("kept: %s", e)
	}
	var problems []error
	for _, f := range slices.Backward(e.cleanup) {
		problems = append(problems, f(ctx, keep))
	}
	if !keep {
		problems = append(problems, os.RemoveAll(e.Dir))
	}
	return errors.Join(problems...)
}

// Say prints a line.
func (e *Environment) Say(format string, args ...any) { fmt.Fprintf(e.Out, format+"\n", args...) }

// Show prints progress, at most a line per second.
func (e *Environment) Show(format string, args ...any) {
	if time.Since(e.shown) >= time.Second {
		e.shown = time.Now()
		e.Say(format, args...)
	}
}

// String says where the data is.
func (e *Environment) String() string {
	if e.Server == "" {
		return "SQLite in " + e.Dir
	}
	return fmt.Sprintf("%s %s, files in %s", e.server().noun, strings.Join(e.created, " and "), e.Dir)
}
