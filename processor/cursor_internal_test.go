package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
)

func TestClaimsResumeInABacklogForASecondAtMost(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	first, second := store.Place{StatusID: "1"}, store.Place{StatusID: "2"}
	c := cursors{}
	at := func(d time.Duration) *store.Place { return c.after("h", noon.Add(d)) }
	claim := func(got int, end store.Place, d time.Duration) {
		c.note(store.KeyLimit{HandlerKey: "h", Limit: 10, After: at(d)}, got, end, noon.Add(d))
	}
	require.Nil(t, at(0))
	claim(9, first, 0)
	require.Nil(t, at(0), "it found all there is")
	claim(10, first, 0)
	require.Equal(t, &first, at(resumeFor-1))
	require.Nil(t, c.after("other", noon))
	claim(10, second, resumeFor/2)
	require.Equal(t, &second, at(resumeFor-1))
	require.Nil(t, at(resumeFor), "however often claims have resumed")
	require.Nil(t, at(-1), "the clock was set back")

	claim(10, first, resumeFor)
	claim(9, second, resumeFor+1)
	require.Nil(t, at(resumeFor+1), "before a handler is taken for done")
	claim(10, first, resumeFor+2)
	require.Nil(t, at(resumeFor+2), "a claim that resumed in vain may have read much")
	claim(10, first, 2*resumeFor+1)
	require.Equal(t, &first, at(2*resumeFor+1))
}
