package trial

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func grouped(lines ...Line) Group {
	return Group{Name: "g", Variants: []Variant{{Name: "a"}, {Name: "b"}, {Name: "c"}}, Lines: lines}
}

func TestFurtherRoundsRunOnlyTheLinesVariants(t *testing.T) {
	often := grouped(Ratio("x", "a", "c", 0).Times(3), Value("y", "b", "p99_ms", 0))
	shared := grouped(Ratio("x", "a", "c", 0), Ratio("y", "a", "b", 0).Times(2))
	all := grouped(RatioOfBest("x", []string{"a", "b"}, []string{"c"}, 0).Times(2))
	for name, tc := range map[string]struct {
		lab   Lab
		group Group
		want  []string
		says  string
	}{
		"a whole run": {Lab{Rounds: 3}, often, []string{"abc", "abc", "abc", "ac", "ac", "ac", "ac", "ac", "ac"},
			"; 9 rounds for `x`"},
		"a variant is shared": {Lab{Rounds: 3}, shared, []string{"abc", "abc", "abc", "ab", "ab", "ab"},
			"; 6 rounds for `y`"},
		"of all variants":      {Lab{Rounds: 3}, all, []string{"abc", "abc", "abc", "abc", "abc", "abc"}, "; 6 rounds for `x`"},
		"without such a line":  {Lab{Rounds: 3}, grouped(Ratio("x", "a", "b", 0)), []string{"abc", "abc", "abc"}, ""},
		"a glance":             {Lab{Rounds: 1}, often, []string{"abc"}, ""},
		"a quick run":          {Lab{Rounds: 3, Quick: true}, often, []string{"abc", "abc", "abc"}, ""},
		"a test of the groups": {Lab{Rounds: 3, Tiny: true}, often, []string{"abc", "abc", "abc"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			rounds := tc.lab.rounds(tc.group)
			var got []string
			for _, variants := range rounds {
				names := ""
				for _, v := range variants {
					names += v.Name
				}
				got = append(got, names)
			}
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.says, tc.lab.more(tc.group, rounds))
		})
	}
}

func TestLineCountsRoundsCommonToItsVariants(t *testing.T) {
	lab := Lab{Rounds: 3}
	lines := lab.limited([]Line{Ratio("x", "a", "b", 0), Ratio("y", "a", "c", 0).Times(2)})
	r := measured(map[string][]float64{"a": {1, 1, 1, 5, 5, 5}, "b": {1, 1, 1}, "c": {1, 1, 1, 1, 1, 1}})
	for _, c := range []struct {
		line Line
		want float64
	}{{lines[0], 1}, {lines[1], 3}} {
		value, err := c.line.Of(r)
		require.NoError(t, err)
		require.Equal(t, c.want, value)
	}
	r.Measures["c"] = r.Measures["c"][:5]
	_, err := lines[1].Of(r)
	require.ErrorContains(t, err, "were not measured in the same rounds")
}
