package inbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

// TestStartWarnsAboutLowJITThreshold proves contract 3.7.
func TestStartWarnsAboutLowJITThreshold(t *testing.T) {
	t.Parallel()
	for settings, warned := range map[string]bool{
		"": false, "jit_above_cost=10": true, "jit_above_cost=0": true, "jit_above_cost=-1": false,
		"jit_above_cost=200000": false, "jit_above_cost=10&jit=off": false,
	} {
		t.Run(settings, func(t *testing.T) {
			t.Parallel()
			db := testenv.OpenPostgres(t, testenv.PostgresDSN(t)+"&"+settings)
			log, logs := inboxtest.Observe()
			inboxtest.Start(t, inboxtest.New(t, db, log, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing))))()
			found := logs.FilterFieldKey("jit_above_cost").All()
			if !warned {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Equal(t, "client", found[0].ContextMap()["setting_of"])
		})
	}
}
