package operators

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
)

// side is a server with a standby, or the standby.
type side interface {
	DSN() string
	Freeze() error
	Kill() error
	Close() error
}

// pair is a database whose standby can be read.
type pair struct {
	start func() (primary, standby side, err error)
	open  func(t testing.TB, dsn string) *gorm.DB
	// async has commits not wait for the standby any more. pause and resume are of the standby's replay.
	async         []string
	pause, resume string
}

func pairOf[S interface {
	side
	StartStandby() (S, error)
}](primary S, err error) (side, side, error) {
	if err != nil {
		return nil, nil, err
	}
	standby, err := primary.StartStandby()
	if err != nil {
		return nil, nil, errors.Join(err, primary.Close())
	}
	return primary, standby, nil
}

var pairs = map[string]pair{
	"postgres": {start: func() (side, side, error) { return pairOf(servers.StartPostgres(servers.PostgresOptions{})) },
		open:  testenv.OpenPostgres,
		async: []string{"ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"},
		pause: "SELECT pg_wal_replay_pause()", resume: "SELECT pg_wal_replay_resume()"},
	"mariadb": {start: func() (side, side, error) { return pairOf(servers.StartMariaDB(servers.MySQLOptions{})) },
		open:  testenv.OpenMySQL,
		async: []string{"SET GLOBAL rpl_semi_sync_master_enabled = OFF"},
		pause: "STOP SLAVE SQL_THREAD", resume: "START SLAVE SQL_THREAD"},
}

// behind is an inbox that runs on a primary with a standby, which operators read.
type behind struct {
	t                *testing.T
	ib               *inbox.Inbox
	ops              *ops.Ops
	db               *gorm.DB // the standby
	primary, standby side
}

func newBehind(t *testing.T, of pair) *behind {
	t.Helper()
	b := &behind{t: t}
	var err error
	b.primary, b.standby, err = of.start()
	testenv.LeaveOutIf(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(b.standby.Close(), b.primary.Close())) })
	db := of.open(t, b.primary.DSN())
	for _, statement := range of.async {
		inboxtest.Exec(t, db, statement)
	}
	b.db = of.open(t, b.standby.DSN())
	b.ib = inboxtest.New(t, db, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do(mail,
		func(context.Context, inboxtest.Bytes) error { return handler.Poison(errors.New("no mail server")) })))
	inboxtest.Start(t, b.ib)
	b.ops, err = b.ib.Ops(func(o *ops.Options) { o.Replica = b.db })
	require.NoError(t, err)
	return b
}

// poison has the running handler poison a message.
func (b *behind) poison(id string) {
	b.t.Helper()
	inboxtest.Accept(b.t, b.ib, id)
	inboxtest.Eventually(b.t, func() bool { return slices.Contains(b.poisoned(b.ops), id) }, id+" is poisoned")
}

func (b *behind) poisoned(r ops.Reader) (ids []string) {
	b.t.Helper()
	page, err := r.List(b.t.Context(), ops.Filter{States: []ops.State{ops.StatePoisoned}}, "", 0)
	require.NoError(b.t, err)
	for _, s := range page.Items {
		ids = append(ids, s.MessageID)
	}
	return ids
}

// reads waits until a Reader says where it reads in this way.
func (b *behind) reads(what string, is func(ops.Source) bool) (r ops.Reader, from ops.Source) {
	b.t.Helper()
	inboxtest.Eventually(b.t, func() bool {
		r, from = b.ops.Reader(b.t.Context())
		return is(from)
	}, what)
	return r, from
}

func caughtUp(s ops.Source) bool { return s.Replica && s.Behind >= 0 && s.Behind < time.Second }

// page returns the dashboard's list of poisoned messages.
func (b *behind) page() string {
	b.t.Helper()
	d, err := dashboard.New(b.ops, func(o *dashboard.Options) {
		o.Authorizer = func(*http.Request) (dashboard.Principal, error) {
			return dashboard.Principal{Actor: operator, Role: dashboard.Admin}, nil
		}
	})
	require.NoError(b.t, err)
	answer := httptest.NewRecorder()
	d.ServeHTTP(answer, httptest.NewRequestWithContext(b.t.Context(), http.MethodGet, "/messages?state=poisoned", nil))
	require.Equal(b.t, http.StatusOK, answer.Code)
	return answer.Body.String()
}

// TestOperatorsReadAHotStandby proves contract 11.7 with each front end: on a standby whose replay stands still, that
// lacks an action, that is level again, and that is gone.
func TestOperatorsReadAHotStandby(t *testing.T) {
	program := build(t)
	for name, of := range pairs {
		t.Run(name, func(t *testing.T) { readStandby(t, newBehind(t, of), of, program) })
	}
}

func readStandby(t *testing.T, b *behind, of pair, program string) {
	inboxctl := func(args ...string) (out, notes string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), program, args...)
		command.Env = append(os.Environ(), "INBOX_DSN="+b.primary.DSN(), "INBOX_REPLICA_DSN="+b.standby.DSN(),
			"INBOX_ACTOR="+operator)
		var errOut strings.Builder
		command.Stderr = &errOut
		printed, err := command.Output()
		require.NoError(t, err, errOut.String())
		return string(printed), errOut.String()
	}
	b.poison("m1")
	r, _ := b.reads("the standby has caught up", func(s ops.Source) bool {
		return caughtUp(s) && slices.Equal(b.poisoned(b.ops), []string{"m1"})
	})
	inboxtest.Eventually(t, func() bool { return slices.Equal(b.poisoned(r), []string{"m1"}) }, "the standby has m1")

	inboxtest.Exec(t, b.db, of.pause)
	r, from := b.reads("the standby is behind", func(s ops.Source) bool { return s.Replica && s.Behind >= 2*time.Second })
	require.Contains(t, from.String(), "s behind")
	b.poison("m2")
	require.Equal(t, []string{"m1"}, b.poisoned(r), "a list is the standby's")
	m, err := r.Message(t.Context(), operator, ops.MessageRef{ID: "m2"})
	require.NoError(t, err, "a message that the standby lacks is the primary's")
	require.Len(t, m.Statuses, 1)
	out, notes := inboxctl("list", "--state", "poisoned")
	require.Contains(t, out, "m1")
	require.NotContains(t, out, "m2")
	require.Regexp(t, `Read from a replica, \d+s behind\.`, notes)
	page := b.page()
	require.Regexp(t, `Read from a replica, \d+s behind\.`, page)
	require.NotContains(t, page, "m2")

	out, _ = inboxctl("discard", "--matching", "--handler", mail, "--dry-run", "-o", "json")
	require.Contains(t, out, `"matched": 2`, "what an action is to change is counted on the primary")
	_, notes = inboxctl("discard", m.Statuses[0].ID)
	require.NotContains(t, notes, "Read from")
	const lacks = "Read from the primary: the replica does not have the latest action yet."
	out, notes = inboxctl("list", "--state", "poisoned")
	require.Contains(t, notes, lacks)
	require.NotContains(t, out, "m2", "who acts and looks again sees it")
	require.Contains(t, b.page(), lacks)

	inboxtest.Exec(t, b.db, of.resume)
	b.reads("the standby has caught up again", caughtUp)

	require.NoError(t, b.standby.Freeze())
	r, from = b.ops.Reader(t.Context())
	require.Equal(t, "Read from the primary: the replica does not answer", from.String(), "while it is frozen")
	require.Equal(t, []string{"m1"}, b.poisoned(r))
	require.NoError(t, b.standby.Kill())
	out, notes = inboxctl("list", "--state", "poisoned")
	require.Contains(t, notes, "Read from the primary: the replica does not answer: ")
	require.Contains(t, out, "m1")
	require.Contains(t, b.page(), "Read from the primary: the replica does not answer.")
}
