package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

var errorTests = []test{
	{"a text of a column's length is stored, one more character is a data error", func(s *suite) {
		for _, char := range []string{"a", "é", "日"} {
			fits := message(strings.Repeat(char, columns.MaxMessageID), strings.Repeat(char, columns.MaxHandlerKey))
			fits.Type, fits.Source = strings.Repeat(char, columns.MaxType), strings.Repeat(char, columns.MaxSource)
			fits.ContentType, fits.TransportName = strings.Repeat(char, columns.MaxContentType), strings.Repeat(char,
				columns.MaxTransportName)
			require.True(s, s.accept(fits)[0].Inserted)
			require.Equal(s, strings.Repeat(char, columns.MaxHandlerKey),
				s.claim(noon, 1, strings.Repeat(char, columns.MaxHandlerKey))[0].HandlerKey)
		}
		for name, spoil := range map[string]func(m *store.NewMessage){
			"id":           func(m *store.NewMessage) { m.ID = strings.Repeat("é", columns.MaxMessageID+1) },
			"type":         func(m *store.NewMessage) { m.Type = strings.Repeat("é", columns.MaxType+1) },
			"source":       func(m *store.NewMessage) { m.Source = strings.Repeat("é", columns.MaxSource+1) },
			"content type": func(m *store.NewMessage) { m.ContentType = strings.Repeat("é", columns.MaxContentType+1) },
			"transport":    func(m *store.NewMessage) { m.TransportName = strings.Repeat("é", columns.MaxTransportName+1) },
			"handler":      func(m *store.NewMessage) { m.Handlers[0].HandlerKey = strings.Repeat("é", columns.MaxHandlerKey+1) },
			"nul":          func(m *store.NewMessage) { m.ID = "a\x00" },
			"utf8":         func(m *store.NewMessage) { m.Source = "a\xff" },
			"properties":   func(m *store.NewMessage) { m.SerializedProperties = "\x00" },
		} {
			bad := message("bad", "mail")
			spoil(&bad)
			_, err := s.store.Accept(s.ctx, store.AcceptBatch{Messages: []store.NewMessage{message("good", "mail"), bad},
				Now: noon})
			require.Error(s, err, name)
			require.True(s, store.IsData(err), "%s: %v", name, err)
			require.False(s, store.IsTransient(err), "%s: %v", name, err)
		}
		require.NotContains(s, s.messageIDs(), "good", "a batch is stored as a whole or not at all")
	}},
	{"any identifier the columns hold comes back unaltered", func(s *suite) {
		for _, id := range []string{`"`, `'; DROP TABLE inbox_messages; --`, `\`, "{a,b}", "NULL", "null", "", " ", "a\nb",
			"\u2028", "😀", "<&>", "$1", "?1", "(0,1)"} {
			m := message(id, "key "+id)
			m.Type, m.Source = id, id
			require.True(s, s.accept(m)[0].Inserted, "%q", id)
			require.Equal(s, store.Accepted{}, s.accept(m)[0], "%q", id)
			claims := s.claim(noon, 1, "key "+id)
			require.Len(s, claims, 1)
			require.Equal(s, id, claims[0].MessageID)
			require.Equal(s, id, claims[0].Message.Source)
			s.complete(noon, claims...)
		}
	}},
	{"identifiers that differ in case, in an accent or at their end are not the same", func(s *suite) {
		alike := []string{"order", "Order", "örder", "order ", "order\t"}
		many := message("many", alike...)
		require.Equal(s, len(alike), s.accept(many)[0].StatusesAdded)
		for _, id := range alike {
			require.Len(s, s.claim(noon, 10, id), 1, "the handler %q", id)
			require.True(s, s.accept(message(id, "mail"))[0].Inserted, "the message %q", id)
			elsewhere := message("m", "mail")
			elsewhere.Namespace = id
			require.True(s, s.accept(elsewhere)[0].Inserted, "the namespace %q", id)
			inNamespace := marker("m", "mail")
			inNamespace.Namespace = id
			for _, m := range []models.Marker{marker(id, "mail"), marker("m", id), inNamespace} {
				require.True(s, s.addMarker(m, nil), "the marker %q, %q, %q", m.MessageID, m.HandlerKey, m.Namespace)
			}
		}
	}},
	{"a unique violation is recognised", func(s *suite) {
		require.NoError(s, s.db.Create(&models.Meta{Key: "k", Value: "v"}).Error)
		err := s.db.Create(&models.Meta{Key: "k", Value: "v"}).Error
		require.True(s, store.IsUniqueViolation(err), "primary key: %v", err)
		require.True(s, store.IsData(err))
		s.accept(message("m1", "mail"))
		row := s.status("m1", "mail")
		row.ID = "01890000-0000-7000-8000-000000000000"
		err = s.db.Create(&row).Error
		require.True(s, store.IsUniqueViolation(fmt.Errorf("wrapped: %w", errors.Join(errors.New("other"), err))),
			"unique index: %v", err)
		err = s.db.Table("inbox_meta").Create(map[string]any{"key": "other"}).Error
		require.False(s, store.IsUniqueViolation(err), "not null: %v", err)
		require.True(s, store.IsData(err))
		err = s.db.Exec(`SELECT nothing FROM nowhere`).Error
		require.Error(s, err)
		require.False(s, store.IsUniqueViolation(err) || store.IsData(err) || store.IsTransient(err), "%v", err)
	}},
	{"an ended context is a transient error in every operation", func(s *suite) {
		s.accept(message("m1", "mail"))
		ended, cancel := context.WithCancel(s.ctx)
		cancel()
		late, cancelLate := context.WithDeadline(s.ctx, time.Unix(0, 0))
		defer cancelLate()
		for ctx, sentinel := range map[context.Context]error{ended: context.Canceled, late: context.DeadlineExceeded} {
			for name, call := range map[string]func() error{
				"accept": func() error {
					_, err := s.store.Accept(ctx, store.AcceptBatch{Messages: []store.NewMessage{message("m2")}, Now: noon})
					return err
				},
				"claim": func() error {
					_, err := s.store.Claim(ctx, store.ClaimRequest{Now: noon,
						Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1}}})
					return err
				},
				"nextdue": func() error { _, err := s.store.NextDue(ctx, []string{"mail"}, noon); return err },
				"cleanup": func() error {
					_, err := s.store.Cleanup(ctx, store.CleanupRequest{Cutoff: cutoff, Limit: 1})
					return err
				},
				"lease": func() error {
					_, err := s.store.AcquireLease(ctx, "p", "01890000-0000-7000-8000-000000000000", time.Minute, noon)
					return err
				},
				"complete": func() error {
					_, err := s.store.Complete(ctx, []store.Completion{{StatusID: s.status("m1", "mail").ID, Version: 1}}, noon,
						store.AwaitLocked)
					return err
				},
			} {
				err := call()
				require.ErrorIs(s, err, sentinel, name)
				require.True(s, store.IsTransient(err), "%s: %v", name, err)
			}
		}
		require.Equal(s, []string{"m1"}, s.messageIDs())
		require.EqualValues(s, 1, s.status("m1", "mail").Version)
	}},
	{"a context that ends while waiting for a lock is a transient error and leaves nothing", func(s *suite) {
		tx := s.begin()
		s.acceptTx(tx, noon, message("m1", "mail"))
		ctx, cancel := context.WithTimeout(s.ctx, 200*time.Millisecond)
		defer cancel()
		_, err := s.store.Accept(ctx, store.AcceptBatch{Messages: []store.NewMessage{message("m1", "mail", "other")},
			Now: noon})
		require.Error(s, err)
		require.True(s, store.IsTransient(err), "%v", err)
		require.NoError(s, tx.Commit().Error)
		require.Equal(s, []string{"m1/mail"}, pairs(s.statuses()))
		s.accept(message("m1", "other"))
	}},
	{"a lost connection is a transient error", func(s *suite) {
		if s.onSQLite("SQLite has no connection to lose") {
			return
		}
		tx := s.begin()
		require.NoError(s, s.server.Terminate(s.db, tx))
		_, err := s.store.AcceptTx(s.ctx, tx, store.AcceptBatch{Messages: []store.NewMessage{message("m1")}, Now: noon})
		require.Error(s, err)
		require.True(s, store.IsTransient(err), "%v", err)
		require.False(s, store.IsData(err))
		s.accept(message("m1"))
	}},
}
