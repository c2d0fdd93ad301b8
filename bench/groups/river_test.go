package groups

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/bench/trial"
)

func TestLinesDivideByTheBestOfRiversThreeSettings(t *testing.T) {
	for _, g := range []trial.Group{Process(), EndToEnd()} {
		for _, best := range []string{river500, river1000, river2000} {
			r := &trial.Result{Group: g, Measures: map[string][]trial.Measure{}}
			for _, v := range g.Variants {
				r.Measures[v.Name] = []trial.Measure{{Rate: 100}}
			}
			r.Measures["inbox"] = []trial.Measure{{Rate: 600}}
			r.Measures[best] = []trial.Measure{{Rate: 200}}
			value, err := g.Lines[0].Of(r)
			require.NoError(t, err)
			require.Equal(t, 3.0, value, "%s, %s", g.Lines[0].Name, best)
		}
	}
}
