package telemetry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// TestCleanupRunsAreMeasuredAndDeletionsCounted proves contract 12.
func TestCleanupRunsAreMeasuredAndDeletionsCounted(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m, provider := newMeter(t)
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, provider, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("a", inboxtest.Nothing), inboxtest.Do("b", inboxtest.Nothing)))
		require.Equal(t, map[string]float64{"messages": 0, "statuses": 0, "markers": 0, "audit": 0, "rejected": 0,
			"workers": 0, "leases": 0}, by(m.collect(t)["inbox.cleanup.deleted"], "inbox.cleanup.table"),
			"from the start, so that the first run is an increase")
		inboxtest.Accept(t, ib, "1", "2")
		inboxtest.Process(t, ib)
		clock.Advance(2 * time.Hour)
		deleted, err := ib.Cleanup(t.Context())
		require.NoError(t, err)
		require.Equal(t, handler.Deleted{Messages: 2, Statuses: 4}, deleted)
		require.NoError(t, inboxtest.Store(t, d.DB).RecordProgress(t.Context(),
			[]models.Partition{{Channel: "c", GroupID: "g", Topic: "orders"}}, nil, clock.Now()))
		_, err = ib.Cleanup(t.Context())
		require.ErrorAs(t, err, new(*cleanup.WaitingError), "a wait is no failure")
		inboxtest.Exec(t, d.DB, "DELETE FROM inbox_partitions")
		inboxtest.Exec(t, d.DB, "ALTER TABLE inbox_messages RENAME TO hidden")
		_, err = ib.Cleanup(t.Context())
		require.Error(t, err)

		collected := m.collect(t)
		require.Equal(t, map[string]float64{"messages": 2, "statuses": 4, "markers": 0, "audit": 0, "rejected": 0,
			"workers": 0, "leases": 0},
			by(collected["inbox.cleanup.deleted"], "inbox.cleanup.table"))
		runs := map[string]uint64{}
		for _, p := range collected["inbox.cleanup.duration"] {
			runs[p.of("error.type")] += p.count
			require.Equal(t, "test", p.of("inbox.name"))
		}
		require.Equal(t, map[string]uint64{"": 2, "_OTHER": 1}, runs)
	})
}
