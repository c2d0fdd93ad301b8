package ops_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// behindProxy runs a test with a rig, and with the operations of the same inbox through a proxy.
func behindProxy(t *testing.T, test func(t *testing.T, r *rig, proxy *pgproxy.Proxy, o *ops.Ops)) {
	t.Helper()
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r, proxy := newRig(t, d, nil), pgproxy.New(t, d.DSN())
		proxied := inboxtest.New(t, testenv.OpenPostgres(t, proxy.DSN()), inbox.Configure(func(o *inbox.Options) {
			o.Clock = r.clock
		}), inbox.Channel("c", inbox.On("t", inboxtest.Do("mail", inboxtest.Nothing),
			inboxtest.Do("ship", inboxtest.Nothing))))
		o, err := proxied.Ops(patient)
		require.NoError(t, err)
		test(t, r, proxy, o)
	})
}

// losses are the moments at which a connection is lost.
var losses = map[string]pgproxy.Fault{"before the statement": pgproxy.RequestLost, "after the statement": pgproxy.AnswerLost}

// Contract 11.1. SQLite has no connection to lose.
func TestReAcceptContinuesAfterLostConnections(t *testing.T) {
	for name, fault := range losses {
		for what, statement := range map[string]func(sql string) bool{
			"the search":  pgproxy.Containing("SELECT", "inbox_rejected_messages", "ORDER BY"),
			"the accept":  pgproxy.Containing("INSERT INTO", "inbox_messages"),
			"the audit":   pgproxy.Containing("INSERT INTO", "inbox_audit"),
			"the commit":  pgproxy.Commit,
			"the read":    pgproxy.Containing("SELECT", "inbox_audit"),
			"everything ": func(sql string) bool { return strings.Contains(sql, "inbox_") },
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				behindProxy(t, func(t *testing.T, r *rig, proxy *pgproxy.Proxy, o *ops.Ops) {
					const n = 6
					for i := range int64(n) {
						r.reject(i, "bad", func(m *models.RejectedMessage) {
							if i == 2 {
								withoutHeaders(m)
							}
						})
					}
					filter := ops.RejectedFilter{Channel: "c"}
					progress := func(b ops.BulkResult) {
						if b.Done == 1 {
							proxy.Lose(fault, 2, statement)
						}
					}
					result, err := o.ReAcceptMatching(t.Context(), ada, filter, ops.Bulk{ChunkSize: 1, Progress: progress})
					require.NoError(t, err)
					require.Equal(t, []int64{n - 1, 1, 0}, []int64{result.Done, result.StillBad, result.Skipped})
					require.Equal(t, []int64{2}, rejected(r, filter, n))
					require.Equal(t, n-1, inboxtest.CountMessages(t, r.ib))
				})
			})
		}
	}
}

// Contract 11.1: a record that itself ends each connection is skipped after three tries.
func TestReAcceptSkipsARecordThatLosesItsConnections(t *testing.T) {
	behindProxy(t, func(t *testing.T, r *rig, proxy *pgproxy.Proxy, o *ops.Ops) {
		for i := range int64(3) {
			r.reject(i, "bad")
		}
		filter := ops.RejectedFilter{Channel: "c"}
		progress := func(b ops.BulkResult) {
			if b.Done == 1 && b.Skipped == 0 {
				proxy.Lose(pgproxy.RequestLost, 3, pgproxy.Containing("INSERT INTO", "inbox_messages"))
			}
		}
		result, err := o.ReAcceptMatching(t.Context(), ada, filter, ops.Bulk{ChunkSize: 1, Progress: progress})
		require.NoError(t, err)
		require.Equal(t, []int64{2, 1}, []int64{result.Done, result.Skipped})
		require.Len(t, result.Reasons, 1)
		require.Contains(t, result.Reasons[0].Reason, "each try to accept it lost its connection")
		require.Equal(t, []int64{1}, rejected(r, filter, 3))
		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{Action: ops.ActionReAccept}, "", 10)
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(page.Items, func(e ops.AuditEntry) bool {
			return strings.Contains(e.Detail, "connection lost")
		}), "it has an audit row")
	})
}

// Contract 11.1. SQLite has no connection to lose.
func TestBulkRetryAndDiscardContinueAfterLostConnections(t *testing.T) {
	for name, fault := range losses {
		for what, statement := range map[string]func(sql string) bool{
			"the search": pgproxy.Containing("SELECT", "inbox_handler_statuses", "ORDER BY"),
			"the change": pgproxy.Containing("UPDATE", "inbox_handler_statuses"),
			"the commit": pgproxy.Commit,
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				behindProxy(t, func(t *testing.T, r *rig, proxy *pgproxy.Proxy, o *ops.Ops) {
					ids := []string{"1", "2", "3", "4", "5", "6"}
					r.poison("mail", "bad", ids...)
					r.poison("ship", "bad", ids...)
					r.accept(ids...)
					inboxtest.Process(t, r.ib)
					act := map[string]func(filter ops.Filter, bulk ops.Bulk) (ops.BulkResult, error){
						"mail": func(f ops.Filter, b ops.Bulk) (ops.BulkResult, error) { return o.RetryMatching(t.Context(), ada, f, b) },
						"ship": func(f ops.Filter, b ops.Bulk) (ops.BulkResult, error) {
							return o.DiscardMatching(t.Context(), ada, f, b)
						},
					}
					for key, run := range act {
						progress := func(b ops.BulkResult) {
							if b.Done == 2 {
								proxy.Lose(fault, 2, statement)
							}
						}
						result, err := run(ops.Filter{HandlerKeys: []string{key}}, ops.Bulk{ChunkSize: 2, Progress: progress})
						require.NoError(t, err, key)
						require.Equal(t, []int64{6, 0}, []int64{result.Done, result.Skipped}, key)
					}
					var poisoned int64
					require.NoError(t, r.d.DB.Model(&models.HandlerStatus{}).Where("is_poisoned").Count(&poisoned).Error)
					require.Zero(t, poisoned)
				})
			})
		}
	}
}
