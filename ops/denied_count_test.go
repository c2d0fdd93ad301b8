package ops

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDenialsOfManyActorsAreBounded(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	var d denials
	rest := map[denial]int64{}
	for i := range 3 * maxDenials {
		of, count := d.count(denial{Actor(fmt.Sprintf("a%d", i)), "POST delete"}, now)
		if of.actor == unknown {
			rest[of] = count.Requests
		} else {
			require.EqualValues(t, 1, count.Requests)
		}
	}
	require.Len(t, rest, 1)
	require.Contains(t, rest, denial{unknown, "more actors and targets than are told apart"})
	require.EqualValues(t, 2*maxDenials, rest[denial{unknown, "more actors and targets than are told apart"}])
	require.Len(t, d.of, maxDenials+1)
	of, _ := d.count(denial{"later", "POST delete"}, now.Add(denialsFor))
	require.Equal(t, Actor("later"), of.actor)
	require.Len(t, d.of, 1, "what is over is forgotten")
}
