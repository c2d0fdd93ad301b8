package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgressFollowsTheOutput(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, nil, nil, 14)
	require.False(t, p.terminal)
	p.show(Tally{Completed: 3, Claimed: 2, Waiting: 1, Retrying: 1})
	p.show(Tally{}) // too soon
	p.Say("%s", "hello")
	require.Equal(t, "accepted 6 of 14, completed 3, retrying 1\nhello\n", out.String())

	out.Reset()
	p = NewProgress(&out, nil, nil, 14)
	p.terminal = true
	p.show(Tally{})
	p.Say("bye")
	require.Regexp(t, `^\raccepted 0 of 14, completed 0, retrying 0\rbye +\n$`, out.String())
}

func TestPoisonedTransferEndsTheWait(t *testing.T) {
	place, _ := bookHere(t, "")
	p := NewProgress(new(bytes.Buffer), place, nil, 100)
	all := func(t Tally) bool { return t.Completed == 100 }
	require.NoError(t, p.Until(t.Context(), all))
	require.NoError(t, place.DB.Exec("UPDATE inbox_handler_statuses SET completed_at = NULL, is_poisoned = true WHERE message_id = 'transfer-000007'").Error)
	require.ErrorIs(t, p.Until(t.Context(), all), errPoisoned)
}
