package postgres

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestArraysRoundTripInEveryMode(t *testing.T) {
	dsn := testenv.PostgresDSN(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			config, err := pgx.ParseConfig(dsn)
			require.NoError(t, err)
			config.DefaultQueryExecMode = mode
			pool := stdlib.OpenDB(*config)
			defer pool.Close()
			for _, list := range [][]string{
				{},
				{"processed"},
				{"a", "", "NULL", "null", "{}", "{a,b}", "a,b", " ", " x ", `"`, `\`, `\"`, `a\\b"c`, "é日😀", "\n\t"},
			} {
				read, err := store.Query(t.Context(), pool,
					`SELECT e FROM unnest($1::text[]) WITH ORDINALITY AS l(e, n) ORDER BY n`, store.Value[string], texts(list))
				require.NoError(t, err)
				require.Equal(t, append([]string(nil), list...), read)
			}
			want := []string{uuid.NewString(), uuid.Nil.String()}
			ids, err := uuids(want)
			require.NoError(t, err)
			read, err := store.Query(t.Context(), pool,
				`SELECT e::text FROM unnest($1::uuid[]) WITH ORDINALITY AS l(e, n) ORDER BY n`, store.Value[string], ids)
			require.NoError(t, err)
			require.Equal(t, want, read)
		})
	}
	_, err := uuids([]string{"no UUID"})
	require.ErrorContains(t, err, `status ID "no UUID"`)
}
