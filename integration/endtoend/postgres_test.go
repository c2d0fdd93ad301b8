package endtoend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDatabaseOutageUnderLoadIsSurvived proves contract 2 and 5.15: everything resumes without
// help, and nothing is lost or doubled.
func TestDatabaseOutageUnderLoadIsSurvived(t *testing.T) {
	t.Parallel()
	server := disturbedPostgres(t)
	for _, outage := range []struct {
		name       string
		begin, end func() error
		lasts      time.Duration
	}{
		{"stopped and started again", server.Stop, server.Start, 6 * time.Second},
		{"killed and recovered", server.Kill, server.Start, time.Second},
		{"frozen", server.Freeze, server.Thaw, 6 * time.Second},
	} {
		t.Run(outage.name, func(t *testing.T) {
			r := newRigOn(t, server)
			first, second := r.worker(), r.worker()
			r.underDirectLoad(r.newInbox(r.settings.DSN), func() {
				t.Cleanup(func() { require.NoError(t, server.Start()) })
				t.Cleanup(func() { require.NoError(t, server.Thaw()) })
				r.await("work is under way", func() bool { return r.number(`SELECT count(*) FROM effects`) > 50 })
				require.NoError(t, outage.begin())
				pause(t.Context(), outage.lasts)
				require.NoError(t, outage.end())
				back := time.Now()
				done := r.number(`SELECT count(*) FROM effects`)
				r.await("work goes on", func() bool { return r.number(`SELECT count(*) FROM effects`) > done+50 })
				t.Logf("work went on within %s", time.Since(back))
			})
			r.awaitSettled()
			r.verdict()
			require.True(t, first.Running() && second.Running(), "no worker gave up")
			require.NoError(t, first.Terminate())
			require.NoError(t, second.Terminate())
			require.NoError(t, first.Wait(patience))
			require.NoError(t, second.Wait(patience))
		})
	}
}
