package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
)

// TestListsWorkWhereNothingCanBeWritten checks what operators get on a replica: all lists and counts, and neither a
// message's content nor an action, because these write audit rows (contract 11.3).
func TestListsWorkWhereNothingCanBeWritten(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.poison("mail", "no mail server", "m")
		r.accept("m")
		r.process()
		o, err := ops.New(testenv.OpenPostgres(t, d.DSN()+"&default_transaction_read_only=on"), patient)
		require.NoError(t, err)

		require.NoError(t, o.CheckSchema(t.Context()))
		overview, err := o.Overview(t.Context())
		require.NoError(t, err)
		require.NotEmpty(t, overview)
		poisoned := ops.Filter{States: []ops.State{ops.StatePoisoned}}
		page, err := o.List(t.Context(), poisoned, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 1)
		count, err := o.Count(t.Context(), poisoned)
		require.NoError(t, err)
		require.EqualValues(t, 1, count.N)
		failures, err := o.Failures(t.Context(), poisoned)
		require.NoError(t, err)
		require.NotEmpty(t, failures.Groups)
		_, err = o.Workers(t.Context())
		require.NoError(t, err)
		_, err = o.Consumers(t.Context())
		require.NoError(t, err)

		_, err = o.Message(t.Context(), "operator", ops.MessageRef{ID: "m", Namespace: "c"})
		require.ErrorContains(t, err, "read-only")
		require.ErrorContains(t, o.Pause(t.Context(), "operator", "mail"), "read-only")
	})
}
