package models_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/models"
)

func TestNamingRefusesInvalidIdentifiers(t *testing.T) {
	for _, good := range []models.Naming{
		{}, {Schema: "shop"}, {Prefix: "a"}, {Schema: "_Shop1", Prefix: "Inbox_2_"},
		{Prefix: strings.Repeat("a", columns.MaxPrefix)},
	} {
		require.NoError(t, good.Validate(), good)
	}
	for _, bad := range []string{"a b", `a"`, "a.b", "1a", "a;--", "ä", "a-b", strings.Repeat("a", 64)} {
		err := models.Naming{Schema: bad}.Validate()
		require.ErrorContains(t, err, "schema")
		require.ErrorContains(t, err, "letters, digits and underscores")
		err = models.Naming{Prefix: bad}.Validate()
		require.ErrorContains(t, err, "table prefix")
	}
}

func TestNames(t *testing.T) {
	require.Equal(t, models.Message{}.TableName(), models.Naming{}.Messages())
	require.Equal(t, models.HandlerStatus{}.TableName(), models.Naming{}.HandlerStatuses())
	require.Equal(t, models.RejectedMessage{}.TableName(), models.Naming{}.RejectedMessages())
	require.Equal(t, models.Lock{}.TableName(), models.Naming{}.Locks())
	require.Equal(t, models.Worker{}.TableName(), models.Naming{}.Workers())
	require.Equal(t, models.Handler{}.TableName(), models.Naming{}.Handlers())
	require.Equal(t, models.Marker{}.TableName(), models.Naming{}.Markers())
	require.Equal(t, models.Audit{}.TableName(), models.Naming{}.Audit())
	require.Equal(t, models.Meta{}.TableName(), models.Naming{}.Meta())
	require.Equal(t, `"shop"."in_meta"`, columns.Quote(models.Naming{Schema: "shop", Prefix: "in_"}.Meta()))
}

func TestSQLRefusesUnsupportedInput(t *testing.T) {
	_, err := models.SQL("oracle", models.Naming{})
	require.ErrorContains(t, err, `"oracle" is not supported`)
	_, err = models.SQL("sqlite", models.Naming{Schema: "shop"})
	require.ErrorContains(t, err, "SQLite has no schemas")
	_, err = models.SQL("postgres", models.Naming{Prefix: "a;"})
	require.ErrorContains(t, err, "table prefix")

	// The longest index name must fit into PostgreSQL's 63 bytes.
	migrations, err := models.SQL("postgres", models.Naming{Prefix: strings.Repeat("p", columns.MaxPrefix)})
	require.NoError(t, err)
	for _, word := range strings.Fields(migrations[0].SQL) {
		if strings.HasPrefix(word, `"ppp`) {
			require.LessOrEqual(t, len(strings.Trim(word, `"`)), 63, word)
		}
	}
	require.NotContains(t, migrations[0].SQL, "CREATE TABLE IF NOT EXISTS ${")
}
