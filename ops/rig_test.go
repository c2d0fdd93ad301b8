package ops_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

// ada acts in most tests.
const ada = ops.Actor("ada")

// rig is an inbox, with an operator's Ops. Its handlers are "mail" and "ship" of type "t" and
// "alone" of type "alone", which fail as set by poison and fail.
type rig struct {
	t     testing.TB
	d     *inboxtest.Database
	ib    *inbox.Inbox // as the application's role
	ops   *ops.Ops
	clock *fxtest.Clock

	mu    sync.Mutex
	fails map[string]error // by "key/ID"
	ran   []string         // likewise
}

// onEach runs a test with a rig on each database.
func onEach(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) { test(t, newRig(t, d, nil)) })
}

// lookLimit is how many rows a page, a count or a failure overview looks at.
const lookLimit = 10_000

// patient lets a statement take as long as any wait of a test: with the race detector SQLite is slow.
func patient(o *ops.Options) { o.StatementTimeout = inboxtest.Patience }

func allowReplay(o *ops.Options) { o.AllowReplay = true }

func redactBy(hook redact.Hook) func(*ops.Options) {
	return func(o *ops.Options) { o.Redact = hook }
}

// newRig makes a rig; configure may be nil.
func newRig(t testing.TB, d *inboxtest.Database, configure func(*ops.Options), of ...handler.Option) *rig {
	t.Helper()
	r := &rig{t: t, d: d, clock: fxtest.NewClock(inboxtest.Noon), fails: map[string]error{}}
	run := func(_ context.Context, m inboxtest.Bytes) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		at := m.HandlerKey + "/" + m.ID
		if err := r.fails[at]; err != nil {
			return err
		}
		r.ran = append(r.ran, at)
		return nil
	}
	mail, ship, alone := inboxtest.Do("mail", run, of...), inboxtest.Do("ship", run, of...), inboxtest.Do("alone", run,
		of...)
	r.ib = inboxtest.New(t, d.AsApplication(t), inbox.Configure(func(o *inbox.Options) {
		o.Clock = r.clock
		o.Cleanup.Retention = time.Hour
	}),
		inbox.Channel("c", inbox.On("t", mail, ship), inbox.On("alone", alone)))
	var err error
	r.ops, err = r.ib.Ops(patient, configure)
	require.NoError(t, err)
	return r
}

// poison makes a handler poison these messages from now on.
func (r *rig) poison(key, text string, ids ...string) {
	for _, id := range ids {
		r.fail(key, id, handler.Poison(fmt.Errorf("%s", text)))
	}
}

// fail makes a handler fail a message from now on; a nil error lets it succeed.
func (r *rig) fail(key, id string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails[key+"/"+id] = err
}

// accept accepts messages one second later than the previous ones.
func (r *rig) accept(ids ...string) {
	r.t.Helper()
	r.clock.Advance(time.Second)
	inboxtest.Accept(r.t, r.ib, ids...)
}

// acceptOf accepts messages of another type.
func (r *rig) acceptOf(messageType string, ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		m := inboxtest.Message(id)
		m.Type = messageType
		_, err := r.ib.Accept(r.t.Context(), m)
		require.NoError(r.t, err)
	}
}

// copies adds n copies of each message of a type with one handler, and of its status. It is fast:
// accepting thousands takes pure Go SQLite a minute under the race detector. Accept nothing
// afterwards, because the sequence of numbers is not advanced.
func (r *rig) copies(messageType string, n int) {
	r.t.Helper()
	inboxtest.Exec(r.t, r.d.DB, `INSERT INTO inbox_messages (id, namespace, number, transport_name, type, source, content, content_type, serialized_properties, ordering_key, received_at)
		SELECT m.id || '-' || c.n, m.namespace, m.number * 10000 + c.n, m.transport_name, m.type, m.source, m.content, m.content_type, m.serialized_properties, m.ordering_key, m.received_at
		FROM inbox_messages m, `+numbers(n)+` c WHERE m.type = ?`, messageType)
	inboxtest.Exec(r.t, r.d.DB, `INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, sequence, created_at)
		SELECT `+r.statusID("m.number", "c.n")+`, m.number * 10000 + c.n, m.id || '-' || c.n, s.handler_key, s.sequence * 10000 + c.n, s.created_at
		FROM inbox_messages m JOIN inbox_handler_statuses s ON s.message_number = m.number, `+numbers(n)+` c WHERE m.type = ? AND m.number < 10000`, messageType)
}

// numbers returns the SQL of a table with the numbers n from 1 on.
func numbers(n int) string {
	return fmt.Sprintf("(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < %d) SELECT n FROM c)", n)
}

// statusID returns an expression for an ID made of two numbers of at most six digits each. It sorts
// after those of accepted messages.
func (r *rig) statusID(a, b string) string {
	if r.d.Dialect == "postgres" {
		return fmt.Sprintf(`('f0000000-0000-7000-8000-' || lpad((%s)::text, 6, '0') || lpad((%s)::text, 6, '0'))::uuid`, a, b)
	}
	return fmt.Sprintf(`'f0000000-0000-7000-8000-' || substr('000000' || (%s), -6) || substr('000000' || (%s), -6)`, a, b)
}

func (r *rig) process() { r.t.Helper(); inboxtest.Process(r.t, r.ib) }

func (r *rig) handled() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ran)
}

func (r *rig) status(key, id string) models.HandlerStatus {
	r.t.Helper()
	return inboxtest.Status(r.t, r.ib, id, key)
}

func (r *rig) ref(key, id string) ops.Ref {
	r.t.Helper()
	s := r.status(key, id)
	return ops.Ref{StatusID: s.ID, Version: int64(s.Version)}
}

// list returns all pages of a list, as "key/ID".
func (r *rig) list(filter ops.Filter, limit int) []string {
	r.t.Helper()
	return r.listFrom("", filter, limit)
}

// listFrom returns all pages from a cursor on.
func (r *rig) listFrom(cursor ops.Cursor, filter ops.Filter, limit int) []string {
	r.t.Helper()
	all := []string{}
	for {
		page, err := r.ops.List(r.t.Context(), filter, cursor, limit)
		require.NoError(r.t, err)
		require.LessOrEqual(r.t, len(page.Items), limit)
		for _, s := range page.Items {
			all = append(all, s.HandlerKey+"/"+s.MessageID)
		}
		if cursor = page.Next; cursor == "" {
			return all
		}
	}
}

// audit returns the audit, the first action first, as "actor action target".
func (r *rig) audit() []string {
	r.t.Helper()
	page, err := r.ops.Audit(r.t.Context(), ops.AuditFilter{}, "", ops.MaxLimit)
	require.NoError(r.t, err)
	lines := []string{}
	for _, e := range page.Items {
		lines = append(lines, fmt.Sprintf("%s %s %s", e.Actor, e.Action, e.Target))
	}
	slices.Reverse(lines)
	return lines
}

// rows returns everything stored except the audit.
func (r *rig) rows() map[string]any {
	r.t.Helper()
	all := map[string]any{}
	for name, rows := range map[string]any{"inbox_messages": &[]models.Message{},
		"inbox_handler_statuses":  &[]models.HandlerStatus{},
		"inbox_rejected_messages": &[]models.RejectedMessage{}, "inbox_handlers": &[]models.Handler{}} {
		require.NoError(r.t, r.d.DB.Session(&gorm.Session{NewDB: true}).Table(name).Order("1").Find(rows).Error)
		all[name] = rows
	}
	return all
}

// reject stores a rejected record and returns its ID.
func (r *rig) reject(offset int64, reason string, edit ...func(*models.RejectedMessage)) string {
	r.t.Helper()
	r.clock.Advance(time.Second)
	row := models.RejectedMessage{ID: fmt.Sprintf("00000000-0000-7000-8000-%012d", offset), Channel: "c", Topic: "orders",
		Offset: offset, Timestamp: inboxtest.Noon,
		Key: []byte("k"), Value: []byte(`{"a":1}`),
		Headers: properties.SerializeHeaders([]handler.Header{{Key: "ce_specversion",
			Value: []byte("1.0")}, {Key: "ce_id", Value: fmt.Appendf(nil, "r%d", offset)},
			{Key: "ce_type", Value: []byte("t")}, {Key: "ce_source", Value: []byte("/s")}}), Reason: reason,
		RejectedAt: r.clock.Now()}
	for _, e := range edit {
		e(&row)
	}
	require.NoError(r.t, r.d.DB.Create(&row).Error)
	return row.ID
}
