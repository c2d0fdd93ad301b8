package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
	"github.com/gorm-inbox/inbox/models"
)

func TestOnlyACommitWithoutAResponseMayHaveHappened(t *testing.T) {
	t.Parallel()
	batch := func(id string) store.AcceptBatch {
		return store.AcceptBatch{Now: time.Now(), Messages: []store.NewMessage{{
			Message: models.Message{ID: id, TransportName: "kafka", Type: "t", ContentType: "text/plain",
				SerializedProperties: "{}", Content: []byte("c")},
			Handlers: []store.NewStatus{{HandlerKey: "h"}},
		}}}
	}
	dsn := testenv.PostgresDSN(t)
	direct, _ := storetest.Migrated(t, testenv.OpenPostgres(t, dsn))
	proxy := pgproxy.New(t, dsn)
	behind := testenv.OpenPostgres(t, proxy.DSN())
	st, err := stores.New(behind, models.Naming{}, store.Options{})
	require.NoError(t, err)
	within := testenv.Patience
	accept := func(id string) error {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		_, err := st.Accept(ctx, batch(id))
		return err
	}
	exec := func(statement string) { require.NoError(t, direct.Exec(statement).Error) }
	require.NoError(t, accept("fine"))

	for _, fault := range []pgproxy.Fault{pgproxy.AnswerLost, pgproxy.RequestLost, pgproxy.ConnectionLost,
		pgproxy.AnswerSilent} {
		if within = testenv.Patience; fault == pgproxy.AnswerSilent {
			within = 5 * time.Second // nothing else ends it
		}
		proxy.LoseCommits(fault, 1)
		err := accept("commit " + fault.String())
		require.Error(t, err, fault)
		require.True(t, store.MayBeCommitted(err), "%s: %v", fault, err)
		proxy.Mend()

		proxy.Lose(fault, 1, pgproxy.Containing("INSERT INTO", `"inbox_messages"`))
		err = accept("insert " + fault.String())
		require.Error(t, err, fault)
		require.False(t, store.MayBeCommitted(err), "%s: without a commit statement nothing is committed: %v", fault, err)
		proxy.Mend()
	}

	within = testenv.Patience
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = st.Accept(ended, batch("ended"))
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, store.MayBeCommitted(err), "nothing was sent: %v", err)

	exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$`)
	for name, trigger := range map[string]string{
		"by a statement": `CREATE TRIGGER refuse BEFORE INSERT ON inbox_handler_statuses FOR EACH ROW EXECUTE FUNCTION refuse()`,
		"by the commit":  `CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON inbox_handler_statuses DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`,
	} {
		exec(trigger)
		err := accept("refused " + name)
		require.ErrorContains(t, err, "refused", name)
		require.False(t, store.MayBeCommitted(err), "%s: %v", name, err)
		exec(`DROP TRIGGER refuse ON inbox_handler_statuses`)
	}

	proxy.Close()
	err = accept("unreachable")
	require.Error(t, err)
	require.False(t, store.MayBeCommitted(err), "it has never begun: %v", err)

	var stored []string
	require.NoError(t,
		direct.Raw(`SELECT id FROM inbox_messages WHERE id LIKE 'insert %' OR id LIKE 'refused %' OR id IN ('ended', 'unreachable')`).Scan(&stored).Error)
	require.Empty(t, stored)
}
