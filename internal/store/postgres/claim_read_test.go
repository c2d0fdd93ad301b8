package postgres

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// TestClaimsReadTheSameByPgxAndByDatabaseSQL proves that both ways of reading claims return the
// same, and never a value of another message. Every user has one of the two.
func TestClaimsReadTheSameByPgxAndByDatabaseSQL(t *testing.T) {
	db := testenv.Postgres(t)
	p := openMigrated(t, db)

	noon := time.Date(2026, 1, 2, 12, 0, 0, 123456000, time.UTC)
	lane := store.Lane{Handler: store.LaneHandler("a"), Key: -7}
	for i, m := range []models.Message{
		{ID: "plain", TransportName: "kafka", Type: "order.placed", Source: "/shop", Content: []byte("one"),
			ContentType: "text/plain", SerializedProperties: `{"a":"b"}`},
		{ID: "same as before", TransportName: "kafka", Type: "order.placed", Source: "/shop", Content: []byte("two"),
			ContentType: "text/plain", SerializedProperties: `{"a":"b"}`},
		{ID: "nothing", TransportName: "kafka", Type: "t", Content: []byte{}, SerializedProperties: "{}"},
		{ID: "日本 '\"\\", TransportName: "publish", Type: "é", Source: "😀", Content: []byte{0, 1, 255, '\\'},
			SerializedProperties: "{}", OrderingKey: []byte{0, 'k'}},
		{ID: "after it", TransportName: "kafka", Type: "t", Content: []byte("three"), SerializedProperties: "{}"},
	} {
		m.ReceivedAt = noon.Add(time.Duration(i) * time.Microsecond)
		require.NoError(t, db.Create(&m).Error)
		s := models.HandlerStatus{ID: uuid.NewString(), MessageNumber: int64(m.Number), MessageID: m.ID,
			HandlerKey: []string{"a", "b"}[i%2], CreatedAt: m.ReceivedAt, ErrorCount: i}
		if m.OrderingKey != nil {
			s.LaneHandler, s.LaneKey = &lane.Handler, &lane.Key
		}
		require.NoError(t, db.Create(&s).Error)
	}
	// What is left after a user has deleted a message by hand.
	require.NoError(t,
		db.Exec(`ALTER TABLE inbox_handler_statuses DROP CONSTRAINT inbox_handler_statuses_message_fk`).Error)
	require.NoError(t, db.Exec(`DELETE FROM inbox_messages WHERE id = 'same as before'`).Error)

	statement := p.Text(`WITH claimed AS (SELECT ` + claimColumnsSQL + ` FROM {statuses})` + claimResultSQL + `
		FROM claimed c LEFT JOIN {messages} m ON m.number = c.message_number ORDER BY c.created_at`)
	pool, err := db.DB()
	require.NoError(t, err)
	native, err := readNative(t.Context(), pool, 1, statement, nil)
	require.NoError(t, err)
	ordinary, err := store.Query(t.Context(), pool, statement, scanClaim)
	require.NoError(t, err)
	require.Len(t, native, 5)
	require.Equal(t, ordinary, native)

	require.Nil(t, native[1].Message)
	require.Equal(t, &lane, native[3].Lane)
	require.Equal(t, []byte{0, 1, 255, '\\'}, native[3].Message.Content)
	require.Equal(t, []byte{}, native[2].Message.Content)
	require.Equal(t, []byte("three"), native[4].Message.Content, "each row has memory of its own")
	require.Empty(t, native[4].Message.Source, "nothing is left of the row before")
}

// TestClaimsPassThroughADriversWrapper covers GORM's prepared statements, for example, or a
// driver that traces each statement.
func TestClaimsPassThroughADriversWrapper(t *testing.T) {
	db := testenv.Postgres(t)
	require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "test"))
	prepared := db.Session(&gorm.Session{PrepareStmt: true})
	opened, err := New(prepared, models.Naming{}, store.Options{})
	require.NoError(t, err)
	claimed, err := opened.Claim(t.Context(), store.ClaimRequest{Now: time.Now(),
		Limits: []store.KeyLimit{{HandlerKey: "h", Limit: 1}}})
	require.NoError(t, err)
	require.Empty(t, claimed.Claims)
	statements := prepared.ConnPool.(*gorm.PreparedStmtDB).Stmts.Keys()
	require.Contains(t, statements, opened.bounded(claimManualSQL, 1))
}
