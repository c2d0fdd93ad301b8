package ours

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestOnlyMessagesHandledOnceCountAsCompleted(t *testing.T) {
	ctx := t.Context()
	ib, err := Open(ctx, testenv.PostgresDSN(t), 1)
	require.NoError(t, err)
	defer ib.Close()
	messages := Messages(2)
	require.NoError(t, ib.AcceptAll(ctx, messages, 2, 1))
	checks := map[string]func(completed int) error{
		"CheckStored":   func(completed int) error { return ib.CheckStored(ctx, 2, 2, completed) },
		"CheckMessages": func(completed int) error { return ib.CheckMessages(ctx, messages, 2, completed) },
	}
	require.NoError(t, checks["CheckStored"](0))
	require.NoError(t, checks["CheckMessages"](0))
	_, err = ib.ProcessPending(ctx)
	require.NoError(t, err)
	for name, check := range checks {
		require.NoError(t, check(2), name)
		ib.Handled.Add(1)
		require.ErrorContains(t, check(2), "handlers were called 3 times, expected 2", name)
		ib.Handled.Add(-1)
	}
	require.NoError(t,
		ib.DB.Exec("UPDATE inbox_handler_statuses SET version = version + 2 WHERE id = (SELECT id FROM inbox_handler_statuses LIMIT 1)").Error)
	for name, check := range checks {
		require.ErrorContains(t, check(2), "completed 1", name)
	}
}
