package scratch

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type sum struct {
	Problems
	total int
}

func (s *sum) Print(out io.Writer) {
	s.Problems.Print(out)
	fmt.Fprintf(out, "total: %d\n", s.total)
}

type settings struct{ first, second int }

// adder is a command whose ledger expects 4.
func adder(err error) Command[settings, *sum] {
	return Command[settings, *sum]{
		Name: "adder",
		Flags: func(flags *flag.FlagSet, s *settings) {
			flags.IntVar(&s.first, "first", 2, "to be added")
			flags.IntVar(&s.second, "second", 2, "to be added")
		},
		Check: func(s *settings) error {
			return errors.Join(Within("-first", s.first, 0, 9), Within("-second", s.second, 0, 9))
		},
		Demonstrate: func(_ context.Context, s settings, out io.Writer) (*sum, error) {
			fmt.Fprintln(out, "adding")
			l := &sum{total: s.first + s.second}
			if l.total != 4 {
				l.Problem("%d and %d are not 4", s.first, s.second)
			}
			return l, err
		},
	}
}

func TestStatusTellsWhatBecameOfTheRun(t *testing.T) {
	for name, c := range map[string]struct {
		err            error
		args           string
		status         int
		stdout, stderr string
	}{
		"balanced":   {nil, "", Balanced, "adding\ntotal: 4\n", ""},
		"unbalanced": {nil, "-first 7", Unbalanced, "adding\ndoes not balance: 7 and 2 are not 4\ntotal: 9\n", ""},
		"failed": {errors.New("no paper"), "-first 1 -second 3", Unbalanced, "adding\ntotal: 4\n",
			"adder: no paper\n"},
		"misused": {nil, "-first 10 -second -1", Misused, "",
			"adder: -first = 10: must be 0 to 9\n-second = -1: must be 0 to 9\n"},
		"a word": {nil, "please", Misused, "", "adder: unknown argument \"please\"\n"},
		"asked for how": {nil, "-h", Balanced, "",
			"Usage of adder:\n  -first int\n    \tto be added (default 2)\n  -second int\n    \tto be added (default 2)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, c.status, adder(c.err).Run(t.Context(), strings.Fields(c.args), &stdout, &stderr))
			require.Equal(t, c.stdout, stdout.String())
			require.Equal(t, c.stderr, stderr.String())
		})
	}
}

func TestMissingLedgerIsNotBalanced(t *testing.T) {
	require.True(t, Failed[*sum](nil, nil))
	require.Equal(t, Unbalanced, adder(nil).Verdict(nil, nil, io.Discard, io.Discard))
	require.True(t, Failed(&sum{}, errors.New("no paper")))
	require.False(t, Failed(&sum{}, nil))
}

func TestManyProblemsArePrintedShort(t *testing.T) {
	for n, more := range map[int]string{1: "", mostProblems: "", mostProblems + 1: "… and 1 more\n",
		100: "… and 80 more\n"} {
		var problems Problems
		for i := range n {
			problems.Problem("%d", i)
		}
		require.False(t, problems.Balanced())
		want := ""
		for i := range min(n, 20) {
			want += fmt.Sprintf("does not balance: %d\n", i)
		}
		var out bytes.Buffer
		problems.Print(&out)
		require.Equal(t, want+more, out.String())
	}
}
