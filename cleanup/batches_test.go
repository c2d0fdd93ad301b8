package cleanup_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// slow is a store whose cleanups time out unless they are small.
type slow struct {
	cleanup.Store
	most int
	mu   sync.Mutex
	seen []int
}

func (s *slow) Cleanup(ctx context.Context, req store.CleanupRequest) (store.CleanupResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, req.Limit)
	if req.Limit > s.most {
		return store.CleanupResult{Next: req.After}, context.DeadlineExceeded
	}
	return s.Store.Cleanup(ctx, req)
}

func TestTimeoutHalvesTheBatchUntilItSucceeds(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		st := &slow{most: 130}
		c, _, stored := cleaner(t, d, 300, func(cfg *cleanup.Config) {
			st.Store, cfg.Store, cfg.Options.CleanupBatchSize = cfg.Store, st, 500
		})
		deleted, err := c.Clean(context.Background())
		require.NoError(t, err)
		require.Equal(t, handler.Deleted{Messages: 300, Statuses: 300}, deleted)
		require.Equal(t, []int{500, 250, 125, 125, 125}, st.seen)
		require.Zero(t, stored())
	})
}

func TestTimeoutOfTheSmallestBatchIsAnError(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		st := &slow{most: 99}
		c, _, stored := cleaner(t, d, 1, func(cfg *cleanup.Config) {
			st.Store, cfg.Store, cfg.Options.CleanupBatchSize = cfg.Store, st, 150
		})
		_, err := c.Clean(context.Background())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, []int{150, 100}, st.seen)
		require.Equal(t, 1, stored())
	})
}

func TestSlowStatementsHalveTheBatch(t *testing.T) {
	// Not on SQLite: it has no function that sleeps.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		ib := old(t, d, nil, 800, log, inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.CleanupBatchSize = 800
			o.Processor.StatementTimeout = 3 * time.Second
		}))
		// More than 250 rows in one transaction take too long, however fast the
		// machine is; fewer take no time.
		inboxtest.Exec(t, d.DB, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
			DECLARE n int := COALESCE(NULLIF(current_setting('test.rows', true), ''), '0')::int + 1;
			BEGIN
				PERFORM set_config('test.rows', n::text, true);
				IF n > 250 THEN PERFORM pg_sleep(60); END IF;
				RETURN OLD;
			END $$`)
		inboxtest.Exec(t, d.DB,
			`CREATE TRIGGER slow BEFORE DELETE ON inbox_handler_statuses FOR EACH ROW EXECUTE FUNCTION slow()`)
		require.Equal(t, handler.Deleted{Messages: 800, Statuses: 800}, clean(t, ib))
		halvings := logs.FilterMessageSnippet("halving")
		require.NotZero(t, halvings.Len())
		require.EqualValues(t, 400, halvings.All()[0].ContextMap()["batch"])
	})
}

func TestLeaseLostBetweenBatchesStopsDeleting(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ib := old(t, d, nil, 6, inbox.Configure(func(o *inbox.Options) { o.Cleanup.CleanupBatchSize = 2 }))
		// With the second message another worker takes the lease.
		take := `UPDATE inbox_locks SET owner_id = '0192f000-0000-7000-8000-000000000001'`
		switch d.Dialect {
		case "postgres":
			inboxtest.Exec(t, d.DB,
				fmt.Sprintf(`CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s; RETURN OLD; END $$`, take))
			inboxtest.Exec(t, d.DB, `CREATE TRIGGER take AFTER DELETE ON inbox_messages FOR EACH ROW EXECUTE FUNCTION take()`)
		case "mysql":
			inboxtest.Exec(t, d.DB, `CREATE TRIGGER take AFTER DELETE ON inbox_messages FOR EACH ROW `+take)
		default:
			inboxtest.Exec(t, d.DB, `CREATE TRIGGER take AFTER DELETE ON inbox_messages BEGIN `+take+`; END`)
		}
		deleted, err := ib.Cleanup(context.Background())
		require.ErrorContains(t, err, "another worker holds the cleanup lease")
		require.Equal(t, handler.Deleted{Messages: 2, Statuses: 2}, deleted, "what was deleted before is reported")
		require.Len(t, stored(t, ib), 4)
		require.Equal(t, 1, count(t, d.DB, &models.Lock{}), "the other's lease is left alone")
	})
}
