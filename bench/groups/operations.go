package groups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/ops"
)

// Operations measures how long operators wait for lists and searches.
func Operations() trial.Group {
	return looksAt(trial.Group{Name: "operations", Shared: stuckInboxOf(1, 50_000),
		About: "what operators open, beside 1 million completed, 10,000 poisoned and 10,000 failing statuses, " +
			"10,000 rejected messages and 10,000 audit rows (with -quick 50,000, 500 and 500); a page has 50 rows, " +
			"and what finds nothing reads 10,000"}, "ops")
}

// ManyOperations measures the same beside ten times as much.
func ManyOperations() trial.Group {
	return looksAt(trial.Group{Name: "operations_10m", Shared: stuckInboxOf(10, 5_000),
		About: "the same beside 10 million completed statuses, ten of each message (with -quick 50,000)"}, "ops_10m")
}

// looksAt adds all looks and their lines.
func looksAt(g trial.Group, prefix string) trial.Group {
	g.Unit, g.NoDatabase = "look", true
	return withLooks(g, prefix, looks, 10)
}

// withLooks adds looks and their lines to a group. The overview takes at most that many milliseconds.
func withLooks(g trial.Group, prefix string, looks []look, overview float64) trial.Group {
	var names, ofMessages []string
	for _, l := range looks {
		if strings.HasSuffix(l.name, ofMessage) {
			ofMessages = append(ofMessages, l.name)
		} else {
			names = append(names, l.name)
		}
		g.Variants = append(g.Variants, trial.Variant{Name: l.name, New: looking(l)})
	}
	g.Lines = append(g.Lines, trial.WorstValue(prefix+"_list_p99_ms", names, "p99_ms", 50),
		trial.Value(prefix+"_overview_p99_ms", overviewLook, "p99_ms", overview),
		trial.WorstValue(prefix+"_of_message_p99_ms", ofMessages, "p99_ms", 100))
	return g
}

// look is one query of an operator. ask returns how many rows it found.
type look struct {
	name string
	// least is the smallest valid number of rows. If it is 0, there must be none.
	least int
	ask   func(ctx context.Context, o *ops.Ops, s *stuckInbox) (int, error)
}

const (
	benchOperator = ops.Actor("operator")
	nowhere       = "there is no such text"
	overviewLook  = "overview"
	// ofMessage ends the names of looks that read the message of each of 10,000 statuses, too.
	ofMessage = ", by what their messages have"
)

func listed(filter ops.Filter) func(context.Context, *ops.Ops, *stuckInbox) (int, error) {
	return func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		page, err := o.List(ctx, filter, "", 0)
		return len(page.Items), err
	}
}

// looks are all lists and searches.
var looks = []look{
	{overviewLook, 1, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		seen, err := o.Overview(ctx)
		return len(seen.Handlers), err
	}},
	{"list, every state", 50, listed(ops.Filter{})},
	{"list, poisoned", 50, listed(ops.Filter{States: []ops.State{ops.StatePoisoned}})},
	{"list, poisoned, its last page", 50, func(ctx context.Context, o *ops.Ops, s *stuckInbox) (int, error) {
		page, err := o.List(ctx, ops.Filter{States: []ops.State{ops.StatePoisoned}}, s.last, 0)
		return len(page.Items), err
	}},
	{"list, failing", 50, listed(ops.Filter{States: []ops.State{ops.StateFailing}})},
	{"list, completed, of one type", 50, listed(ops.Filter{States: []ops.State{ops.StateCompleted}, Type: ours.Type})},
	{"list, received within a time", 50, func(ctx context.Context, o *ops.Ops, s *stuckInbox) (int, error) {
		all := time.Duration(s.completed) * time.Millisecond // the messages are a millisecond apart
		page, err := o.List(ctx, ops.Filter{From: s.accepted.Add(-all * 3 / 4), To: s.accepted.Add(-all / 4)}, "", 0)
		return len(page.Items), err
	}},
	{"search, message ID", 1, func(ctx context.Context, o *ops.Ops, s *stuckInbox) (int, error) {
		page, err := o.List(ctx, ops.Filter{MessageID: s.message}, "", 0)
		return len(page.Items), err
	}},
	{"search, error text that all have", 50, listed(ops.Filter{ErrorText: "IS UNKNOWN"})},
	{"search, error text that none has", 0, listed(ops.Filter{ErrorText: nowhere})},
	{"search, type that none has", 0, listed(ops.Filter{Type: nowhere})},
	{"search, poisoned" + ofMessage, 0, listed(ops.Filter{States: []ops.State{ops.StatePoisoned}, Type: nowhere})},
	{"search, failure group", 20, func(ctx context.Context, o *ops.Ops, s *stuckInbox) (int, error) {
		page, err := o.List(ctx, ops.Filter{Fingerprint: s.group}, "", 0)
		return len(page.Items), err
	}},
	{"count, all that is poisoned", 1, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		count, err := o.Count(ctx, ops.Filter{States: []ops.State{ops.StatePoisoned}})
		return int(count.N), err
	}},
	{"count, all that is failing", 1, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		count, err := o.Count(ctx, ops.Filter{States: []ops.State{ops.StateFailing}})
		return int(count.N), err
	}},
	{"failure groups", 1, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		failures, err := o.Failures(ctx, ops.Filter{})
		return len(failures.Groups), err
	}},
	{"failure groups" + ofMessage, 1, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		failures, err := o.Failures(ctx, ops.Filter{Type: ours.Type})
		return len(failures.Groups), err
	}},
	{"one message, with its audit row", 1, func(ctx context.Context, o *ops.Ops, s *stuckInbox) (int, error) {
		m, err := o.Message(ctx, benchOperator, ops.MessageRef{ID: s.message})
		return len(m.Statuses), err
	}},
	{"rejected messages", 50, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		page, err := o.ListRejected(ctx, ops.RejectedFilter{}, "", 0)
		return len(page.Items), err
	}},
	{"rejected messages, reason that none has", 0, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		page, err := o.ListRejected(ctx, ops.RejectedFilter{Reason: nowhere}, "", 0)
		return len(page.Items), err
	}},
	{"audit", 50, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		page, err := o.Audit(ctx, ops.AuditFilter{}, "", 0)
		return len(page.Items), err
	}},
	{"audit, target that none has", 0, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		page, err := o.Audit(ctx, ops.AuditFilter{Target: nowhere}, "", 0)
		return len(page.Items), err
	}},
	{"handlers", 1, func(ctx context.Context, o *ops.Ops, _ *stuckInbox) (int, error) {
		handlers, err := o.Handlers(ctx)
		return len(handlers), err
	}},
}

// looking repeats the same query.
func looking(l look) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		s := env.Shared.(*stuckInbox)
		// A list reads the newest 10,000 messages. If an accept of this group has left them pending, it would find nothing
		// that has completed.
		if err := drain(ctx, s.database.DSN); err != nil {
			return nil, err
		}
		before, err := s.count(ctx)
		if err != nil {
			return nil, err
		}
		n := env.Scale(s.calls, 20)
		if env.Tiny {
			n = 2
		}
		took := make([]float64, 0, n)
		t := &trial.Trial{Count: n, Close: func() {}}
		t.Run = func(ctx context.Context) error {
			for range n {
				began := time.Now()
				rows, err := l.ask(ctx, s.ops, s)
				if err != nil {
					return err
				}
				took = append(took, float64(time.Since(began))/float64(time.Millisecond))
				if rows < l.least || l.least == 0 && rows > 0 {
					return fmt.Errorf("%d rows answer, expected %d", rows, l.least)
				}
			}
			slices.Sort(took)
			t.Values = map[string]float64{"p50_ms": percentile(took, 50), "p99_ms": percentile(took, 99), "max_ms": took[n-1]}
			return nil
		}
		t.Check = func(ctx context.Context) error {
			if after, err := s.count(ctx); err != nil || after != before {
				return errors.Join(err, fmt.Errorf("looking changed something: %+v were %+v", after, before))
			}
			return nil
		}
		return t, nil
	}
}

// stuckInbox is a database in which most statuses have completed and many have failed.
type stuckInbox struct {
	database *server.Database
	ib       *ours.Inbox
	ops      *ops.Ops

	calls             int       // of each look in a round
	ordered           bool      // whether IDs are in time order
	handlers          int       // of each message; only the first one's have failed
	completed, failed int       // messages
	message           string    // a message that has failed
	accepted          time.Time // when the last completed message was accepted
	group             string    // the group with the most failures
	last              ops.Cursor
}

// stuckInboxOf makes inboxes in which a million messages have completed, or quick with -quick, for each
// of the handlers.
func stuckInboxOf(handlers, quick int) func(context.Context, *trial.Lab) (io.Closer, error) {
	return func(ctx context.Context, lab *trial.Lab) (io.Closer, error) {
		s := &stuckInbox{calls: 100, handlers: handlers, completed: lab.Scale(1_000_000, quick)}
		return s, s.prepare(ctx, lab)
	}
}

// prepare makes the database, or closes it.
func (s *stuckInbox) prepare(ctx context.Context, lab *trial.Lab) (err error) {
	s.failed = lab.Scale(10_000, 500)
	if s.database, err = lab.Server.NewDatabase(ctx); err != nil {
		return err
	}
	if err := s.fill(ctx); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// dsn returns the database, whose IDs are all in one order.
func (s *stuckInbox) dsn(context.Context, bool) (string, error) { return s.database.DSN, nil }

func (s *stuckInbox) fill(ctx context.Context) (err error) {
	if s.ib, err = ours.Open(ctx, s.database.DSN, s.handlers); err != nil {
		return err
	}
	if s.ops, err = s.ib.Ops(); err != nil {
		return err
	}
	completed, err := s.ib.Template(ctx)
	if err != nil {
		return err
	}
	if err := s.ib.DB.WithContext(ctx).Raw(`SELECT max(received_at) FROM inbox_messages`).Scan(&s.accepted).Error; err != nil {
		return err
	}
	if err := s.ib.Preload(ctx, s.database.DSN, completed, s.completed+2*s.failed-1, s.ordered); err != nil {
		return err
	}
	every := s.completed/s.failed + 2
	for _, statement := range []string{
		// The failures are spread among the completed statuses. There are twenty kinds of failure,
		// and no two error texts are equal.
		fmt.Sprintf(`WITH failed AS (
				SELECT number, row_number() OVER (ORDER BY number) AS n FROM inbox_messages WHERE number %% %[1]d < 2 ORDER BY number LIMIT %[2]d
			)
			UPDATE inbox_handler_statuses SET completed_at = NULL, outcome = '', is_poisoned = n %% 2 = 0, error_count = 5,
				next_attempt_at = CASE WHEN n %% 2 = 1 THEN now() + interval '1 day' END,
				last_error = 'rule ' || chr(97 + (n / 2 %% 20)::int) || ': customer ' || n || ' is unknown',
				fingerprint = left(md5((n / 2 %% 20)::text), 16)
			FROM failed WHERE message_number = number AND handler_key = (SELECT min(handler_key) FROM inbox_handler_statuses WHERE message_number = 1)`, every, 2*s.failed),
		`INSERT INTO inbox_rejected_messages SELECT gen_random_uuid(), 'bench', 'orders', 0, n, now(), '\x6b', '\x7b7d', '[]', 'invalid character at ' || n,
			now() - n * interval '1 second' FROM generate_series(1, 10000) n`,
		`INSERT INTO inbox_audit SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'operator', 'retry', 'status ' || n, '{}',
			now() - n * interval '1 second', '' FROM generate_series(1, 10000) n`,
		`VACUUM (ANALYZE)`,
	} {
		if err := s.ib.DB.WithContext(ctx).Exec(statement).Error; err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	err = s.ib.DB.WithContext(ctx).Raw(`SELECT message_id FROM inbox_handler_statuses WHERE is_poisoned ORDER BY id LIMIT 1`).Scan(&s.message).Error
	if err != nil {
		return fmt.Errorf("choose a message: %w", err)
	}
	return s.mark(ctx)
}

// mark checks the counts and stores the group and the cursor that looks use.
func (s *stuckInbox) mark(ctx context.Context) error {
	var all int
	if err := s.ib.DB.WithContext(ctx).Raw(`SELECT count(*) FROM inbox_handler_statuses`).Scan(&all).Error; err != nil {
		return err
	}
	if expected := s.handlers * (s.completed + 2*s.failed); all != expected {
		return fmt.Errorf("there are %d statuses, expected %d", all, expected)
	}
	if c, err := s.count(ctx); err != nil || c.poisoned != s.failed || c.failing != s.failed {
		return errors.Join(err, fmt.Errorf("there are %+v statuses, expected %d poisoned and as many failing", c, s.failed))
	}
	failures, err := s.ops.Failures(ctx, ops.Filter{})
	if err != nil {
		return err
	}
	if len(failures.Groups) != 20 {
		return fmt.Errorf("there are %d failure groups, expected 20", len(failures.Groups))
	}
	s.group = failures.Groups[0].Fingerprint
	const listed = 50 // by a limit of 0
	for n := s.failed - listed; n > 0; n -= min(n, ops.MaxLimit) {
		page, err := s.ops.List(ctx, ops.Filter{States: []ops.State{ops.StatePoisoned}}, s.last, min(n, ops.MaxLimit))
		if err != nil {
			return err
		}
		s.last = page.Next
	}
	return nil
}

// counted are numbers of statuses in a stuckInbox: all that have failed, and what the newest 10,000 messages have.
type counted struct{ newest, poisoned, failing int }

func (s *stuckInbox) count(ctx context.Context) (c counted, err error) {
	pool, err := s.ib.DB.DB()
	if err != nil {
		return c, err
	}
	err = pool.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM inbox_handler_statuses WHERE completed_at IS NOT NULL AND message_number = ANY (
			ARRAY(SELECT number FROM inbox_messages ORDER BY received_at DESC, number DESC LIMIT 10000))),
		count(*) FILTER (WHERE is_poisoned), count(*) FILTER (WHERE NOT is_poisoned)
		FROM inbox_handler_statuses WHERE completed_at IS NULL AND fingerprint IS NOT NULL AND (is_poisoned OR error_count + abandoned_count + interrupted_count > 0)`).
		Scan(&c.newest, &c.poisoned, &c.failing)
	return c, err
}

// Close drops the database.
func (s *stuckInbox) Close() error {
	if s.ib != nil {
		s.ib.Close()
	}
	return s.database.Drop()
}
