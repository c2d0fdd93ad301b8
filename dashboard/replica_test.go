package dashboard_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
)

// TestPagesSayThatTheyAreReadFromAReplica proves contract 11.7. The replica is the database itself. Its connections are
// lost at the end.
func TestPagesSayThatTheyAreReadFromAReplica(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		replica := d.Another(t)
		core, lines := observer.New(zap.InfoLevel)
		r := newRig(t, d, func(o *ops.Options) { o.Replica = replica },
			func(o *dashboard.Options) { o.Logger = zap.New(core) })
		r.poison("mail", "smtp said 550", "m1")
		rejected := r.reject(7, "no ce_id")
		pages := []string{"messages", "failures", "rejected", "gaps", "markers?id=m1", "audit"}
		details := []string{"message?id=m1", "rejected-message?id=" + rejected}
		const says = "Read from a replica, 0s behind."
		for _, page := range append(pages, details...) {
			require.Equal(t, 1, strings.Count(r.page(page), says), page)
		}
		require.Contains(t, r.page("messages?part=live"), says)
		for _, page := range []string{"", "handlers", "handler?handler=mail", "consumers", "workers", "bulk?action=retry&handler=mail",
			"delete?id=m1"} {
			require.NotContains(t, r.page(page), "Read from", page)
		}

		pool, err := replica.DB()
		require.NoError(t, err)
		require.NoError(t, pool.Close())
		for _, page := range append(pages, details...) {
			require.Contains(t, r.page(page), "Read from the primary: the replica does not answer.", page)
		}
		require.Equal(t, 1, lines.FilterMessage("inbox: read replica failing: pages read the primary").Len(), "logged once")
	})
}
