package trial

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func grouped(lines ...Line) Group {
	return Group{Name: "g", Variants: []Variant{{Name: "a"}, {Name: "b"}, {Name: "c"}}, Lines: lines}
}

func TestLinesVariantsHaveFurtherRoundsAlone(t *testing.T) {
	often := grouped(Ratio("x", "a", "c", 0).Times(3), Value("y", "b", "p99_ms", 0))
	all := grouped(RatioOfBest("x", []string{"a", "b"}, []string{"c"}, 0).Times(2))
	for name, tc := range map[string]struct {
		lab   Lab
		group Group
		want  []string
		says  string
	}{
		"a whole run":          {Lab{Rounds: 3}, often, []string{"abc", "abc", "abc", "ac", "ac", "ac", "ac", "ac", "ac"}, `; 9 rounds of "a", "c"`},
		"of all variants":      {Lab{Rounds: 3}, all, []string{"abc", "abc", "abc", "abc", "abc", "abc"}, "; 6 rounds"},
		"without such a line":  {Lab{Rounds: 3}, grouped(Ratio("x", "a", "b", 0)), []string{"abc", "abc", "abc"}, ""},
		"a glance":             {Lab{Rounds: 1}, often, []string{"abc"}, ""},
		"a quick run":          {Lab{Rounds: 3, Quick: true}, often, []string{"abc", "abc", "abc"}, ""},
		"a test of the groups": {Lab{Rounds: 3, Tiny: true}, often, []string{"abc", "abc", "abc"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			rounds, err := tc.lab.rounds(tc.group)
			require.NoError(t, err)
			var got []string
			for _, variants := range rounds {
				names := ""
				for _, v := range variants {
					names += v.Name
				}
				got = append(got, names)
			}
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.says, tc.lab.more(rounds))
		})
	}
}

func TestLinesThatShareAVariantHaveTheSameRounds(t *testing.T) {
	_, err := (&Lab{Rounds: 1, Tiny: true}).Run(t.Context(), grouped(Ratio("x", "a", "b", 0).Times(2), Ratio("y", "b", "c", 0)))
	require.EqualError(t, err, `g: y: another line has "b" measured 2 times as often and "c" 1 times`)
}
