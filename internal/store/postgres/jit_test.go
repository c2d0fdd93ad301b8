package postgres

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	postgresdriver "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// TestStatementsOverManyRowsAreNotJITCompiled proves contract 3.7 for the statements whose estimates are
// not bounded (withoutJIT): on a server that compiles whatever it may, none of them is compiled.
func TestStatementsOverManyRowsAreNotJITCompiled(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(testenv.PostgresDSN(t))
	require.NoError(t, err)
	for name, value := range map[string]string{
		"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "client_min_messages": "log",
		"auto_explain.log_nested_statements": "on", "jit_above_cost": "0",
	} {
		config.RuntimeParams[name] = value
	}
	var mu sync.Mutex
	var plans []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		mu.Lock()
		defer mu.Unlock()
		plans = append(plans, n.Message)
	}
	pool := stdlib.OpenDB(*config)
	defer pool.Close()
	p := openMigrated(t, testenv.Open(t, postgresdriver.New(postgresdriver.Config{Conn: pool}), gorm.Config{}))
	now := time.Now()
	batch := store.AcceptBatch{Now: now.Add(-48 * time.Hour)}
	for _, id := range []string{"m1", "m2", "m3", "m4"} {
		batch.Messages = append(batch.Messages, store.NewMessage{Message: models.Message{ID: id},
			Handlers: []store.NewStatus{{HandlerKey: "h"}}})
	}
	_, err = p.Accept(t.Context(), batch)
	require.NoError(t, err)
	claimed, err := p.Claim(t.Context(), store.ClaimRequest{Now: now,
		Limits: []store.KeyLimit{{HandlerKey: "h", Limit: 4}}})
	require.NoError(t, err)
	require.Len(t, claimed.Claims, 4)
	completions := make([]store.Completion, 4)
	for i, c := range claimed.Claims {
		completions[i] = store.Completion{StatusID: c.StatusID, Version: c.Version, Outcome: models.OutcomeProcessed}
	}
	_, err = p.Complete(t.Context(), completions, now.Add(-47*time.Hour), store.AwaitLocked)
	require.NoError(t, err)

	_, err = p.Workers(t.Context(), now) // asks the server, once, for what the profile depends on
	require.NoError(t, err)

	// compiled returns how many statements were planned, and which of them were compiled.
	compiled := func(do func(context.Context)) (planned int, found []string) {
		mu.Lock()
		plans = nil
		mu.Unlock()
		do(t.Context())
		mu.Lock()
		defer mu.Unlock()
		for _, plan := range plans {
			if strings.Contains(plan, "\nJIT:") {
				found = append(found, plan)
			}
		}
		return len(plans), found
	}
	_, others := compiled(func(ctx context.Context) {
		_, err := p.PendingKeys(ctx)
		require.NoError(t, err)
	})
	require.NotEmpty(t, others, "this server compiles nothing, so the test shows nothing")

	req := store.CleanupRequest{Cutoff: now.Add(time.Hour), Limit: 3}
	for name, do := range map[string]func(context.Context){
		"backlog": func(ctx context.Context) {
			_, err := p.Backlog(ctx, []store.KeyLimit{{HandlerKey: "h", Limit: 10}}, now)
			require.NoError(t, err)
		},
		"archive and cleanup": func(ctx context.Context) {
			found, err := p.Expired(ctx, req)
			require.NoError(t, err)
			require.Len(t, found.MessageNumbers, 3)
			archived, _, err := p.LoadExpired(ctx, req, found.MessageNumbers[:2], 1<<20)
			require.NoError(t, err)
			result, err := p.DeleteExpired(ctx, archived)
			require.NoError(t, err)
			require.EqualValues(t, 2, result.Messages)
			result, err = p.Cleanup(ctx, req)
			require.NoError(t, err)
			require.EqualValues(t, 2, result.Messages)
		},
	} {
		planned, found := compiled(do)
		require.NotZero(t, planned, name)
		require.Empty(t, found, name)
	}
}
