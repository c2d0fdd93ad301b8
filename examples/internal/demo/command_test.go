package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// errEarly is the error of a run that fails before it has created anything.
var errEarly = errors.New("too early")

type settings struct{ first, second int }

// adder is a command whose ledger expects 4.
func adder(err error) Command[settings] {
	return Command[settings]{
		Name: "adder",
		Flags: func(flags *Flags, s *settings) {
			flags.IntWithin(&s.first, "first", 2, 0, 9, "to be added")
			flags.IntWithin(&s.second, "second", 2, 0, 9, "to be added")
		},
		Demonstrate: func(_ context.Context, env *Environment, s settings) (*Ledger, error) {
			env.Show("adding")
			env.Show("adding") // too soon
			if err != errEarly {
				env.Cleanup(func(context.Context, bool) error { return nil })
			}
			l := new(Ledger)
			l.Figure("total", s.first+s.second)
			l.Expect("total", s.first+s.second, 4)
			return l, err
		},
	}
}

func TestStatusAndOutputFollowTheRun(t *testing.T) {
	for name, c := range map[string]struct {
		err                    error
		args                   string
		status                 int
		kept                   bool
		stdout, end, errorText string
	}{
		"balanced": {nil, "", Balanced, false, "adding\n", "total: 4\n", ""},
		"kept":     {nil, "-keep", Balanced, true, "adding\n", "total: 4\n", ""},
		"unbalanced": {nil, "-first 7", Unbalanced, true, "adding\n",
			"does not balance: total: 9, should be 4\ntotal: 9\n", ""},
		"failed": {errors.New("no paper"), "-first 1 -second 3", Unbalanced, true, "adding\n", "total: 4\n",
			"adder: no paper\n"},
		"failed early": {errEarly, "", Unbalanced, false, "adding\n", "total: 4\n", "adder: too early\n"},
		"misused": {nil, "-first 10 -second -1", Misused, false, "", "",
			"adder: -first = 10: must be 0 to 9\n-second = -1: must be 0 to 9\n"},
		"an argument": {nil, "please", Misused, false, "", "", "adder: unknown argument \"please\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			var stdout, stderr bytes.Buffer
			require.Equal(t, c.status, adder(c.err).Run(t.Context(), strings.Fields(c.args), &stdout, &stderr))
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			if c.kept {
				require.Len(t, left, 1)
				c.stdout += "kept: SQLite in " + dir + "/" + left[0].Name() + "\n"
			} else {
				require.Empty(t, left)
			}
			require.Equal(t, c.stdout+c.end, stdout.String())
			require.Equal(t, c.errorText, stderr.String())
		})
	}
}

func TestHelpListsAllFlags(t *testing.T) {
	c := adder(nil)
	c.Seeded = true
	var stdout, stderr bytes.Buffer
	require.Equal(t, Balanced, c.Run(t.Context(), []string{"-h"}, &stdout, &stderr))
	for _, name := range []string{"first", "second", "keep", "postgres", "mysql", "seed"} {
		require.Contains(t, stderr.String(), "  -"+name)
	}
}

func TestSeedMakesTheRunRepeatable(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	drawn := func(args ...string) (n uint64) {
		c := adder(nil)
		c.Seeded = true
		c.Demonstrate = func(_ context.Context, env *Environment, _ settings) (*Ledger, error) {
			n = env.Random.Uint64()
			return new(Ledger), nil
		}
		var out bytes.Buffer
		require.Equal(t, Balanced, c.Run(t.Context(), args, &out, &out), "%s", &out)
		return n
	}
	require.Equal(t, drawn("-seed", "7"), drawn("-seed", "7"))
	require.NotEqual(t, drawn("-seed", "7"), drawn("-seed", "8"))
}

func TestLedgerCountsLossesAndDuplicates(t *testing.T) {
	expected := map[string]bool{"a": true, "b": true, "c": true}
	var l Ledger
	lost, doubled := Once(&l, "rows", expected, []string{"c", "b", "a"})
	require.Empty(t, lost)
	require.Zero(t, doubled)
	require.Zero(t, AtLeastOnce(&l, "calls", expected, []string{"c", "b", "a"}))
	require.True(t, l.Balanced())

	lost, doubled = Once(&l, "rows", expected, []string{"a", "c", "c", "c", "x"})
	require.Equal(t, []string{"b"}, lost)
	require.Equal(t, 2, doubled)
	require.Equal(t, []string{`rows of unknown "x"`, "b: rows: 0, should be 1", "c: rows: 3, should be 1"}, l.Problems)

	l.Problems = nil
	require.Equal(t, 2, AtLeastOnce(&l, "calls", expected, []string{"a", "c", "c", "c", "x"}))
	require.Equal(t, []string{`calls of unknown "x"`, "b: no calls"}, l.Problems)
	require.False(t, l.Balanced())
	require.False(t, (*Ledger)(nil).Balanced())
}

func TestLedgerIsPrintedInOrderWithFewProblems(t *testing.T) {
	for n, more := range map[int]string{0: "", maxProblems: "", maxProblems + 1: "… and 1 more\n",
		100: "… and 80 more\n"} {
		var l Ledger
		want := ""
		for i := range n {
			l.Problem("%d", i)
			if i < maxProblems {
				want += fmt.Sprintf("does not balance: %d\n", i)
			}
		}
		l.Figure("expected", 3)
		l.Zero("lost", 0)
		var out bytes.Buffer
		l.Print(&out)
		require.Equal(t, want+more+"expected: 3\nlost: 0\n", out.String())
		out.Reset()
		l.OneLine = true
		l.Print(&out)
		require.Equal(t, want+more+"expected 3, lost 0\n", out.String())
		require.Equal(t, 3, l.Count("expected"))
	}
	var l Ledger
	l.Zero("lost", 2)
	require.Equal(t, []string{"lost: 2, should be 0"}, l.Problems)
}
