package stores_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// FuzzSQLiteKeepsTextUnchanged checks that what CheckText accepts is stored and found unaltered,
// whatever JSON and collations do to it on the way (contract 3.6).
func FuzzSQLiteKeepsTextUnchanged(f *testing.F) {
	fuzzText(f, func(t testing.TB) *gorm.DB { return testenv.SQLite(t) })
}

func FuzzPostgresKeepsTextUnchanged(f *testing.F) {
	fuzzText(f, func(t testing.TB) *gorm.DB { return testenv.Postgres(t) })
}

func fuzzText(f *testing.F, open func(testing.TB) *gorm.DB) {
	db := open(f)
	require.NoError(f, models.Migrate(f.Context(), db, models.Naming{}, "test"))
	s, err := stores.New(db, models.Naming{}, store.Options{})
	require.NoError(f, err)
	f.Add("m1", "order.placed", "/shop", "mail", []byte(`{}`), []byte("key"), "boom", "[]")
	f.Add("\u2028<&>\"\\'", "\u0001\u001f", "\U0001F600\uFFFE", "e\u0301", []byte{0, 0xff}, []byte{}, "a\x00\xff",
		"\xff\x00")
	f.Add(" m ", "M1", "m1", "{1,2}", []byte(nil), []byte(nil), "", "")
	f.Add("(0,1)", "NULL", "\\N", `a"b`, []byte("x"), []byte("0"), "'; --", "?1 $1 {statuses}")
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, id, typ, source, key string, content, orderingKey []byte, failure, headers string) {
		ctx := t.Context()
		for _, table := range []string{"handler_statuses", "messages", "rejected_messages"} {
			require.NoError(t, db.Exec("DELETE FROM inbox_"+table).Error)
		}
		m := models.Message{ID: id, Namespace: id, TransportName: "t", Type: typ, Source: source, Content: content,
			SerializedProperties: "{}", OrderingKey: orderingKey}
		batch := store.AcceptBatch{Now: at, Messages: []store.NewMessage{{Message: m,
			Handlers: []store.NewStatus{{HandlerKey: key}}}},
			Rejected: []models.RejectedMessage{{Channel: "c", Topic: "t", Key: orderingKey, Value: content, Headers: headers,
				Reason: failure}}}
		_, err := s.Accept(ctx, batch)
		for _, field := range []struct {
			text  string
			limit int
		}{{id, columns.MaxMessageID}, {typ, columns.MaxType}, {source, columns.MaxSource}, {key, columns.MaxHandlerKey}} {
			if store.CheckText(field.text, field.limit) != nil {
				require.ErrorIs(t, err, store.ErrUnstorable)
				return
			}
		}
		require.NoError(t, err)
		again, err := s.Accept(ctx, batch)
		require.NoError(t, err)
		require.Equal(t, []store.Accepted{{}}, again, "known by what it was stored as")

		claimed, err := s.Claim(ctx, store.ClaimRequest{Now: at, Limits: []store.KeyLimit{{HandlerKey: key, Limit: 1}}})
		require.NoError(t, err)
		claims := claimed.Claims
		require.Len(t, claims, 1)
		found := claims[0].Message
		require.Equal(t, [6]string{id, id, id, typ, source, key},
			[6]string{claims[0].MessageID, found.ID, found.Namespace, found.Type, found.Source, claims[0].HandlerKey})
		require.Equal(t, string(content), string(found.Content))
		require.Equal(t, orderingKey == nil, found.OrderingKey == nil)
		require.Equal(t, string(orderingKey), string(found.OrderingKey))

		siblings, err := s.Siblings(ctx, []int64{int64(found.Number)}, []string{key})
		require.NoError(t, err)
		require.Len(t, siblings, 1)
		applied, err := s.Settle(ctx, []store.Settlement{{StatusID: claims[0].StatusID, HandlerKey: key,
			Version: claims[0].Version, LastError: &failure}}, store.AwaitLocked)
		require.NoError(t, err)
		require.Equal(t, []bool{true}, applied)
		var row models.HandlerStatus
		require.NoError(t, db.WithContext(ctx).Where("handler_key = ?", key).Take(&row).Error)
		require.Equal(t, store.SanitizeError(failure), *row.LastError)
		require.NoError(t, s.SetPaused(ctx, key, true, at))
		paused, err := s.Paused(ctx)
		require.NoError(t, err)
		require.Contains(t, paused, key)
		require.NoError(t, s.SetPaused(ctx, key, false, at))
	})
}
