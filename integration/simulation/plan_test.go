package simulation

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlanFollowsFromItsSeed(t *testing.T) {
	for seed := range uint64(100) {
		plan := NewPlan(seed)
		require.Equal(t, plan, NewPlan(seed))
		require.Equal(t, plan, plan.Only(whole(plan)))
		kept := Kept{2, []int{0, 3}, []int{1}}
		read, err := ParseKept(kept.String())
		require.NoError(t, err)
		require.Equal(t, kept, read)
	}
	_, err := ParseKept("2/x/")
	require.Error(t, err)
}
