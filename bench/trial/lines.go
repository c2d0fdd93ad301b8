package trial

import (
	"fmt"
	"slices"
)

// Line is one named figure for scripts, printed as "name: value".
type Line struct {
	Name string
	// AtLeast and AtMost are the target. 0 means none.
	AtLeast, AtMost float64
	value           func(*Result) (float64, error)
	variants        []string
	times           int
	rounds          int // how many rounds count, from the first, in which all variants were measured; 0 means all
}

// Times multiplies the rounds of the line's variants. Only these variants take part in the
// additional rounds. Use it for trials of a second or two: other load on the machine can distort
// one of them, and a median of three depends on two.
func (l Line) Times(n int) Line {
	l.times = n
	return l
}

// Ratio is the rate of one variant divided by that of another, in each round.
func Ratio(name, variant, to string, atLeast float64) Line {
	return RatioOfBest(name, []string{variant}, []string{to}, atLeast)
}

// RatioOfBest is a Ratio between the best of several variants on either side, chosen anew in each
// round.
func RatioOfBest(name string, variants, to []string, atLeast float64) Line {
	return Line{Name: name, AtLeast: atLeast, variants: slices.Concat(variants, to),
		value: func(r *Result) (float64, error) {
			of, err := r.best(variants)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			by, err := r.best(to)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			if len(of) != len(by) {
				return 0, fmt.Errorf("%s: %q and %q were not measured in the same rounds", name, variants, to)
			}
			ratios := make([]float64, len(of))
			for i := range of {
				ratios[i] = of[i] / by[i]
			}
			return Median(ratios), nil
		}}
}

// ServerRatio is the server's CPU per unit of one variant divided by that of another, in each round.
func ServerRatio(name, variant, to string, atMost float64) Line {
	return Line{Name: name, AtMost: atMost, variants: []string{variant, to}, value: func(r *Result) (float64, error) {
		of, by := r.Measures[variant], r.Measures[to]
		if len(of) == 0 || len(of) != len(by) {
			return 0, fmt.Errorf("%s: %q and %q were not measured in the same rounds", name, variant, to)
		}
		ratios := make([]float64, len(of))
		for i := range of {
			if by[i].ServerUs == 0 {
				return 0, fmt.Errorf("%s: the server's CPU was not measured", name)
			}
			ratios[i] = of[i].ServerUs / by[i].ServerUs
		}
		return Median(ratios), nil
	}}
}

// best returns the highest rate of any of the variants in each round.
func (r *Result) best(variants []string) ([]float64, error) {
	var best []float64
	for i, v := range variants {
		measures := r.Measures[v]
		if len(measures) == 0 || i > 0 && len(measures) != len(best) {
			return nil, fmt.Errorf("%q was not measured in the same rounds", v)
		}
		if i == 0 {
			best = make([]float64, len(measures))
		}
		for round, m := range measures {
			best[round] = max(best[round], m.Rate)
		}
	}
	return best, nil
}

// Rate is the median of a variant's rates. It says nothing about another machine: have a Ratio beside it.
func Rate(name, variant string, atLeast float64) Line {
	return Line{Name: name, AtLeast: atLeast, variants: []string{variant}, value: func(r *Result) (float64, error) {
		rates, err := r.best([]string{variant})
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		return Median(rates), nil
	}}
}

// Value is the median of one further figure of a variant.
func Value(name, variant, key string, atMost float64) Line {
	return Line{Name: name, AtMost: atMost, variants: []string{variant}, value: func(r *Result) (float64, error) {
		var values []float64
		for _, m := range r.Measures[variant] {
			if v, ok := m.Values[key]; ok {
				values = append(values, v)
			}
		}
		if len(values) == 0 {
			return 0, fmt.Errorf("%s: %q has measured no %s", name, variant, key)
		}
		return Median(values), nil
	}}
}

// WorstValue is the largest of several variants' Values.
func WorstValue(name string, variants []string, key string, atMost float64) Line {
	return Line{Name: name, AtMost: atMost, variants: variants, value: func(r *Result) (float64, error) {
		worst := 0.0
		for _, variant := range variants {
			value, err := Value(name, variant, key, atMost).Of(r)
			if err != nil {
				return 0, err
			}
			worst = max(worst, value)
		}
		return worst, nil
	}}
}

// Of computes the line from the measurements.
func (l Line) Of(r *Result) (float64, error) {
	if l.rounds == 0 {
		return l.value(r)
	}
	first := &Result{Group: r.Group, Measures: map[string][]Measure{}}
	for _, v := range l.variants {
		measures := r.Measures[v]
		first.Measures[v] = measures[:min(l.rounds, len(measures))]
	}
	return l.value(first)
}

// Met reports whether a value reaches the line's target.
func (l Line) Met(value float64) bool {
	return (l.AtLeast == 0 || value >= l.AtLeast) && (l.AtMost == 0 || value <= l.AtMost)
}

// First reduces a group to its first line and the variants that it needs.
func (g Group) First() Group {
	if len(g.Lines) == 0 {
		g.Variants = g.Variants[:1]
		return g
	}
	g.Lines = g.Lines[:1]
	g.Variants = slices.DeleteFunc(slices.Clone(g.Variants), func(v Variant) bool {
		return !slices.Contains(g.Lines[0].variants, v.Name)
	})
	return g
}

// Median returns the median of at least one value.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
