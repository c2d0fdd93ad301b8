package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/postgres"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

func TestGrantsRefuseUnsafeRoles(t *testing.T) {
	t.Parallel()
	for _, roles := range []postgres.Roles{{}, {Application: "public"}, {Operator: "none"}, {Reader: "a\x00b"}} {
		_, err := postgres.Grants(models.Naming{}, roles)
		require.Error(t, err, "%+v", roles)
	}
	_, err := postgres.Grants(models.Naming{Schema: "a b"}, postgres.Roles{Application: "app"})
	require.ErrorContains(t, err, `schema = "a b"`)
	script, err := postgres.Grants(models.Naming{}, postgres.Roles{Reader: `a"; DROP TABLE x; --`})
	require.NoError(t, err)
	require.Contains(t, script, `TO "a""; DROP TABLE x; --";`)
}

// TestSessionsOfAnotherRoleAreEndedWithBothGrants proves contract 5.9.
func TestSessionsOfAnotherRoleAreEndedWithBothGrants(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	storetest.Migrated(t, testenv.OpenPostgres(t, dsn))
	theirs, asThem := inboxtest.ApplicationRole(t, dsn)
	ours, asUs := inboxtest.ApplicationRole(t, dsn)
	their, our := testenv.OpenPostgres(t, asThem), testenv.OpenPostgres(t, asUs)
	theirStore, err := stores.New(their, models.Naming{}, store.Options{})
	require.NoError(t, err)
	ourStore, err := stores.New(our, models.Naming{}, store.Options{})
	require.NoError(t, err)

	dead, now := uuid.NewString(), time.Now()
	require.NoError(t, theirStore.Heartbeat(t.Context(), store.Worker{ID: dead, Host: "host", PID: 7}, now))
	claimed := store.NewMessage{Message: models.Message{ID: "1"},
		Handlers: []store.NewStatus{{HandlerKey: "mail", Claim: true}}}
	accepted, err := theirStore.Accept(t.Context(),
		store.AcceptBatch{Now: now, Claimer: dead, Messages: []store.NewMessage{claimed}})
	require.NoError(t, err)
	ref := accepted[0].Claims[0].Ref
	left := their.Begin()
	require.NoError(t, left.Error)
	require.NoError(t, left.Exec(`UPDATE inbox_handler_statuses SET version = version`).Error) // as a handler's transaction does
	evict := func() (ended int, evictable bool) {
		workers, err := ourStore.Workers(t.Context(), now)
		require.NoError(t, err)
		require.Len(t, workers, 1)
		require.Equal(t, theirs, workers[0].DatabaseRole)
		ended, err = ourStore.EvictHolders(t.Context(), []store.Ref{ref}, nil)
		require.NoError(t, err)
		return ended, workers[0].Evictable
	}
	for _, grant := range []string{"", "pg_signal_backend"} {
		if grant != "" {
			testenv.Grant(t, dsn, grant, ours)
		}
		ended, evictable := evict()
		require.Zero(t, ended, grant)
		require.False(t, evictable, grant)
	}
	testenv.Grant(t, dsn, "pg_read_all_stats", ours)
	ended, evictable := evict()
	require.Equal(t, 1, ended)
	require.True(t, evictable)
	require.Error(t, left.Commit().Error)
}
