package gormstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

var errBody = errors.New("the body failed")

// rig is a store on a database of the test's own, with a table of the effects of bodies. An effect
// can be in it twice.
type rig struct {
	*testing.T
	*inboxtest.Database
	store *gormstore.Store
}

func newRig(t *testing.T, d *inboxtest.Database, options ...func(*gormstore.Options)) *rig {
	t.Helper()
	require.NoError(t, models.Migrate(t.Context(), d.DB, models.Naming{}, ""))
	inboxtest.Exec(t, d.DB, `CREATE TABLE effects (message_id varchar(200) NOT NULL)`)
	return &rig{t, d, open(t, d.DB, options...)}
}

func open(t testing.TB, db *gorm.DB, options ...func(*gormstore.Options)) *gormstore.Store {
	t.Helper()
	s, err := gormstore.New(db, options...)
	require.NoError(t, err)
	require.NoError(t, s.Check(t.Context()))
	return s
}

func run(messageID string) idempotent.Run {
	return idempotent.Run{Key: idempotent.Key{MessageID: messageID, HandlerKey: "h"}, MessageType: "order.placed",
		Retention: time.Hour}
}

// effect returns a body that has one effect and returns err.
func effect(messageID string, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		if failed := handler.DB(ctx).Exec(`INSERT INTO effects VALUES (?)`, messageID).Error; failed != nil {
			return failed
		}
		return err
	}
}

// effects returns the message IDs of all effects.
func (r *rig) effects() []string {
	r.Helper()
	found := []string{}
	require.NoError(r, r.DB.Raw(`SELECT message_id FROM effects ORDER BY message_id`).Scan(&found).Error)
	return found
}

func (r *rig) markers() []string {
	r.Helper()
	found := []string{}
	require.NoError(r, r.DB.Model(&models.Marker{}).Order("message_id").Pluck("message_id", &found).Error)
	return found
}

// have checks that exactly these messages have left both a marker and an effect.
func (r *rig) have(messageIDs ...string) {
	r.Helper()
	expected := append([]string{}, messageIDs...)
	require.Equal(r, expected, r.effects(), "effects")
	require.Equal(r, expected, r.markers(), "markers")
}

func (r *rig) handled(s *gormstore.Store, messageID string) {
	r.Helper()
	duplicate, err := s.Run(r.Context(), run(messageID), effect(messageID, nil))
	require.NoError(r, err)
	require.False(r, duplicate)
}

func (r *rig) skipped(s *gormstore.Store, messageID string) {
	r.Helper()
	duplicate, err := s.Run(r.Context(), run(messageID), effect(messageID, nil))
	require.NoError(r, err)
	require.True(r, duplicate)
}

// outcome is the result of a call of Run.
type outcome struct {
	duplicate bool
	err       error
}

// underway is a call whose body has had its effect and waits until the test says how to end.
type underway struct {
	result chan error
	done   chan outcome
}

func (r *rig) begin(s *gormstore.Store, messageID string) underway {
	r.Helper()
	u := underway{make(chan error, 1), make(chan outcome, 1)}
	called := make(chan error, 1)
	go func() {
		var o outcome
		o.duplicate, o.err = s.Run(r.Context(), run(messageID), func(ctx context.Context) error {
			called <- effect(messageID, nil)(ctx)
			select {
			case err := <-u.result:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		u.done <- o
	}()
	require.NoError(r, inboxtest.Receive(r, called, "the body's call"))
	return u
}

func (u underway) end(t testing.TB, err error) outcome {
	t.Helper()
	u.result <- err
	return inboxtest.Receive(t, u.done, "the end of the call under way")
}

// beside makes a call in the background.
func (r *rig) beside(s *gormstore.Store, messageID string) chan outcome {
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		o.duplicate, o.err = s.Run(r.Context(), run(messageID), effect(messageID, nil))
		done <- o
	}()
	return done
}

// waiting waits until n sessions of the database wait for a lock.
func (r *rig) waiting(n int) {
	r.Helper()
	inboxtest.Eventually(r, func() bool {
		var found int
		err := r.DB.Raw(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&found).Error
		return err == nil && found == n
	}, "sessions that wait for a lock")
}

func bySimpleProtocol(dsn string) gorm.Dialector {
	return postgres.New(postgres.Config{DSN: dsn, PreferSimpleProtocol: true})
}
