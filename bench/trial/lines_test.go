package trial

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func measured(rates map[string][]float64) *Result {
	r := &Result{Measures: map[string][]Measure{}}
	for variant, all := range rates {
		for _, rate := range all {
			r.Measures[variant] = append(r.Measures[variant], Measure{Rate: rate})
		}
	}
	return r
}

func TestRatioIsTheMedianOfTheRoundsRatios(t *testing.T) {
	r := measured(map[string][]float64{"ours": {10, 40, 90}, "theirs": {10, 10, 30}})
	value, err := Ratio("x", "ours", "theirs", 2).Of(r)
	require.NoError(t, err)
	require.Equal(t, 3.0, value, "of 1, 4 and 3; the medians' ratio would be 4")
}

func TestRateIsTheMedianOfTheRounds(t *testing.T) {
	line := Rate("x", "ours", 5)
	value, err := line.Of(measured(map[string][]float64{"ours": {10, 90, 20}}))
	require.NoError(t, err)
	require.Equal(t, 20.0, value)
	_, err = line.Of(measured(map[string][]float64{"theirs": {10}}))
	require.ErrorContains(t, err, "x: ")
}

func TestRatioOfBestTakesTheBetterOnEitherSideInEachRound(t *testing.T) {
	r := measured(map[string][]float64{"a": {10, 80}, "b": {20, 40}, "c": {5, 8}, "d": {4, 10}})
	value, err := RatioOfBest("x", []string{"a", "b"}, []string{"c", "d"}, 0).Of(r)
	require.NoError(t, err)
	require.Equal(t, 6.0, value, "between 20/5 and 80/10")
}

func TestRatioOfVariantsOfDifferentRoundsIsAnError(t *testing.T) {
	for name, rates := range map[string]map[string][]float64{
		"one is missing":         {"a": {1}, "c": {1}},
		"one has fewer rounds":   {"a": {1, 1}, "b": {1}, "c": {1, 1}},
		"the other side has few": {"a": {1, 1}, "b": {1, 1}, "c": {1}},
		"the other is missing":   {"a": {1}, "b": {1}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := RatioOfBest("x", []string{"a", "b"}, []string{"c"}, 0).Of(measured(rates))
			require.ErrorContains(t, err, "x: ")
		})
	}
}

func TestServerRatioIsTheMedianOfTheRoundsRatios(t *testing.T) {
	of := func(costs ...float64) (all []Measure) {
		for _, us := range costs {
			all = append(all, Measure{ServerUs: us})
		}
		return all
	}
	line := ServerRatio("x", "four", "one", 1.2)
	value, err := line.Of(&Result{Measures: map[string][]Measure{"four": of(30, 22, 60), "one": of(20, 20, 30)}})
	require.NoError(t, err)
	require.Equal(t, 1.5, value)
	for name, measures := range map[string]map[string][]Measure{
		"another number of rounds": {"four": of(30), "one": of(20, 20)},
		"not measured":             {"four": of(30), "one": of(0)},
		"missing":                  {"one": of(20)},
	} {
		_, err := line.Of(&Result{Measures: measures})
		require.ErrorContains(t, err, "x: ", name)
	}
}

func TestQuickRunKeepsTheFirstLineAndAllOfItsVariants(t *testing.T) {
	g := Group{
		Variants: []Variant{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}},
		Lines:    []Line{RatioOfBest("x", []string{"a"}, []string{"c", "d"}, 0), Ratio("y", "a", "b", 0)},
	}
	first := g.First()
	require.Len(t, first.Lines, 1)
	var names []string
	for _, v := range first.Variants {
		names = append(names, v.Name)
	}
	require.Equal(t, []string{"a", "c", "d"}, names)
	require.Len(t, g.Variants, 4, "the group itself is as it was")
}

func TestTargetIsALowerOrUpperBound(t *testing.T) {
	require.True(t, Line{AtLeast: 2}.Met(2))
	require.False(t, Line{AtLeast: 2}.Met(1.99))
	require.True(t, Line{AtMost: 10}.Met(10))
	require.False(t, Line{AtMost: 10}.Met(10.1))
}

func TestWorstValueIsTheLargestMedian(t *testing.T) {
	of := func(values ...float64) (all []Measure) {
		for _, v := range values {
			all = append(all, Measure{Values: map[string]float64{"p99_ms": v}})
		}
		return all
	}
	r := &Result{Measures: map[string][]Measure{"a": of(1, 90, 2), "b": of(7, 5, 6), "c": of(1, 1, 1)}}
	line := WorstValue("x", []string{"a", "b", "c"}, "p99_ms", 10)
	value, err := line.Of(r)
	require.NoError(t, err)
	require.Equal(t, 6.0, value)
	_, err = WorstValue("x", []string{"a", "missing"}, "p99_ms", 10).Of(r)
	require.ErrorContains(t, err, "missing")
	require.Len(t, Group{Variants: []Variant{{Name: "a"}, {Name: "b"}, {Name: "d"}}, Lines: []Line{line}}.First().Variants,
		2)
}
