package scratch

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScreenFollowsTheOutput(t *testing.T) {
	var out bytes.Buffer
	s := NewScreen(&out)
	require.False(t, s.terminal)
	s.Show("%d of %d", 3, 14)
	s.Show("%d of %d", 4, 14) // too soon
	s.Say("%s", "hello")
	require.Equal(t, "3 of 14\nhello\n", out.String())

	out.Reset()
	s = NewScreen(&out)
	s.terminal = true
	s.Show("0 of 14")
	s.Say("bye")
	require.Equal(t, "\r0 of 14\rbye    \n", out.String())
}
