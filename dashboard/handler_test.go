package dashboard_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/ops"
)

const running = `<span class="state completed">running</span>`

// TestOneHandlerHasAPage proves contract 11.1.
func TestOneHandlerHasAPage(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		require.Equal(t, http.StatusNotFound, r.get("handler?handler=mail").Status)
		require.Equal(t, http.StatusBadRequest, r.get("handler").Status)
		worker := store.Worker{ID: uuid.NewString(), Host: "app-1", PID: 7, HandlerKeys: []string{"mail", "ship"},
			Health:   `[{"code":"open_circuit","state":"degraded","handler_key":"mail","detail":"its circuit breaker is open since <noon>"}]`,
			Settings: `{"handlers":[{"keys":["mail"],"channel":"<orders>","mode":"Inbox","type":"*","kind":"plain","max_retries":5}]}`}
		st := inboxtest.Store(t, r.d.DB)
		require.NoError(t, st.Heartbeat(t.Context(), worker, r.clock.Now()))
		r.poison("mail", "smtp said <550>", "m1")
		inboxtest.Accept(t, r.ib, "m2")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = created_at, worker_id = ?
			WHERE message_id = 'm2'`, uuid.NewString())
		list := r.page("handlers")
		require.Contains(t, list, `href="./handler?handler=mail"`)
		require.Contains(t, list, `<span class="state paused">1 claim of a dead worker</span>`)
		require.NotContains(t, list, running, "nothing runs")
		require.Contains(t, r.page(""), `href="./handler?handler=mail"`)
		page := r.page("handler?handler=mail")
		for _, shown := range []string{`<span class="state paused">circuit breaker open</span>`, "open since &lt;noon&gt;", "smtp said &lt;#&gt;",
			`<span class="state poisoned">dead</span>`, "another one reclaims it in about", "of Inbox channel &lt;orders&gt;",
			`action="./pause?handler=mail"`, "of all 2 messages received within 6 hours, 2 have a status"} {
			require.Contains(t, page, shown)
		}
		require.Contains(t, r.page("handler?handler=mail&part=live"), "<nav")
		require.NotContains(t, r.as(1).page("handler?handler=mail"), "./pause", "a viewer")

		worker.Health = ""
		require.NoError(t, st.Heartbeat(t.Context(), worker, r.clock.Now()))
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET worker_id = ? WHERE message_id = 'm2'`, worker.ID)
		r.clock.Advance(2 * time.Second)
		require.Contains(t, r.page("handlers"), running)
		require.Contains(t, r.page("handler?handler=mail"), "app-1")
	})
}

// Contract 11.1: pages show what can be read. SQLite's readers wait for nobody in WAL mode.
func TestHandlersOfALockedTableAreShown(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRigOf(t, d, []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.StatementTimeout = 500 * time.Millisecond
		})}, nil)
		r.fail("mail", errors.New("x"), "m1")
		require.NoError(t, inboxtest.Store(t, d.DB).Heartbeat(t.Context(), store.Worker{ID: uuid.NewString(), Host: "h",
			HandlerKeys: []string{"mail", "ship"}}, time.Now()))
		require.NoError(t, r.ops.Pause(t.Context(), ops.Actor("ada"), "ship"))
		require.NoError(t, d.DB.Transaction(func(tx *gorm.DB) error {
			inboxtest.Exec(t, tx, "LOCK TABLE inbox_handler_statuses IN ACCESS EXCLUSIVE MODE")
			for _, page := range []string{"handlers", "handler?handler=mail", "handler?handler=ship"} {
				text := r.page(page)
				require.Contains(t, text, "Not everything could be counted", page)
				require.Contains(t, text, "?", page)
				require.NotContains(t, text, running, page)
			}
			require.Contains(t, r.page("handler?handler=ship"), fmt.Sprintf(`<span class="state paused">%s</span>`, "paused"))
			return nil
		}))
		require.NotContains(t, r.page("handler?handler=mail"), "Not everything", "the next page reads again")
	})
}
