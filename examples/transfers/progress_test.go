package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

func TestPoisonedTransferEndsTheWait(t *testing.T) {
	place, _ := bookHere(t, "")
	p := NewProgress(new(bytes.Buffer), place, nil, 100)
	all := func(t scratch.Tally) bool { return t.Completed == 100 }
	require.NoError(t, p.Until(t.Context(), all))
	require.NoError(t,
		place.DB.Exec("UPDATE inbox_handler_statuses SET completed_at = NULL, is_poisoned = true WHERE message_id = 'transfer-000007'").Error)
	require.ErrorIs(t, p.Until(t.Context(), all), errPoisoned)
}
