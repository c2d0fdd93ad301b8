package ops_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// copied is a SQLite database with a read replica: a copy of its file, as old as the test makes it.
type copied struct {
	*rig
	file string
}

// onCopied runs a test on a database with a poisoned message "m" and a worker whose heartbeat is the injected clock's.
func onCopied(t *testing.T, test func(t *testing.T, c *copied)) {
	t.Helper()
	t.Parallel()
	d := &inboxtest.Database{Dialect: "sqlite", DB: testenv.SQLite(t)}
	c := &copied{rig: newRig(t, d, nil), file: filepath.Join(t.TempDir(), "replica.db")}
	c.poison("mail", "no mail server", "m")
	c.accept("m")
	inboxtest.Process(t, c.ib)
	require.NoError(t, d.DB.Create(&models.Worker{ID: "00000000-0000-7000-8000-000000000001", Host: "h", HandlerKeys: "{}",
		Health: "[]", Consumers: "[]", StartedAt: c.clock.Now(), HeartbeatAt: c.clock.Now()}).Error)
	test(t, c)
}

// beat is a heartbeat after that time.
func (c *copied) beat(after time.Duration) {
	c.t.Helper()
	c.clock.Advance(after)
	require.NoError(c.t, c.d.DB.Model(&models.Worker{}).Where("host = ?", "h").Update("heartbeat_at", c.clock.Now()).Error)
}

// replicate makes the replica as it stays from now on, and opens it.
func (c *copied) replicate() *gorm.DB {
	c.t.Helper()
	inboxtest.Exec(c.t, c.d.DB, "VACUUM INTO ?", c.file)
	return testenv.OpenSQLite(c.t, "file:"+c.file)
}

// reading returns an Ops with that replica.
func (c *copied) reading(replica *gorm.DB) *ops.Ops {
	c.t.Helper()
	o, err := c.ib.Ops(patient, func(o *ops.Options) { o.Replica = replica })
	require.NoError(c.t, err)
	return o
}

func (c *copied) poisonedIn(r ops.Reader) (ids []string) {
	c.t.Helper()
	page, err := r.List(c.t.Context(), ops.Filter{States: []ops.State{ops.StatePoisoned}}, "", 0)
	require.NoError(c.t, err)
	for _, s := range page.Items {
		ids = append(ids, s.MessageID)
	}
	return ids
}

// TestReaderReadsTheReplicaAndSaysHowFarItIsBehind proves contract 11.7: lists, counts and groups are the replica's.
func TestReaderReadsTheReplicaAndSaysHowFarItIsBehind(t *testing.T) {
	onCopied(t, func(t *testing.T, c *copied) {
		o := c.reading(c.replicate())
		c.poison("mail", "no mail server", "later")
		c.accept("later")
		inboxtest.Process(t, c.ib)

		r, from := o.Reader(t.Context())
		require.Equal(t, "Read from a replica, 0s behind", from.String(), "an idle primary is no delay")
		require.Equal(t, []string{"m"}, c.poisonedIn(r))
		require.Equal(t, []string{"later", "m"}, c.poisonedIn(o), "what is read without Reader is the primary's")
		count, err := r.Count(t.Context(), ops.Filter{States: []ops.State{ops.StatePoisoned}})
		require.NoError(t, err)
		require.EqualValues(t, 1, count.N)
		groups, err := r.Failures(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.EqualValues(t, 1, groups.Groups[0].Poisoned)

		c.beat(39 * time.Second) // the accept took one
		_, from = o.Reader(t.Context())
		require.Equal(t, ops.Source{Replica: true, Behind: 40 * time.Second}, from)
		c.beat(80 * time.Second)
		_, from = o.Reader(t.Context())
		require.Equal(t, "Read from a replica, 2m behind: more than 1m, check its replication", from.String())
		c.clock.Advance(time.Minute)
		r, from = o.Reader(t.Context())
		require.Negative(t, from.Behind)
		require.Equal(t, "Read from a replica: its delay is unknown, because no worker runs", from.String())
		require.Equal(t, []string{"m"}, c.poisonedIn(r))
	})
}

// TestReaderReadsThePrimaryUntilTheReplicaHasTheLastAction proves contract 11.7: who acts and looks again sees it.
func TestReaderReadsThePrimaryUntilTheReplicaHasTheLastAction(t *testing.T) {
	onCopied(t, func(t *testing.T, c *copied) {
		old := c.reading(c.replicate())
		r, from := old.Reader(t.Context())
		require.True(t, from.Replica)
		page, err := r.List(t.Context(), ops.Filter{MessageID: "m", HandlerKeys: []string{"mail"}}, "", 0)
		require.NoError(t, err)
		require.NoError(t, old.Discard(t.Context(), ada, page.Items[0].Ref(), ""))

		r, from = old.Reader(t.Context())
		require.Equal(t, "Read from the primary: the replica does not have the latest action yet", from.String())
		require.Empty(t, c.poisonedIn(r))

		c.file += ".new"
		_, from = c.reading(c.replicate()).Reader(t.Context())
		require.True(t, from.Replica, from)
	})
}

// TestDetailsFromAReplicaAreAuditedOnThePrimary proves contract 11.3 and 11.7.
func TestDetailsFromAReplicaAreAuditedOnThePrimary(t *testing.T) {
	onCopied(t, func(t *testing.T, c *copied) {
		o := c.reading(c.replicate())
		c.accept("later")
		r, from := o.Reader(t.Context())
		require.True(t, from.Replica)
		for _, id := range []string{"m", "later"} { // the replica does not have the second
			m, err := r.Message(t.Context(), ada, ops.MessageRef{ID: id, Namespace: "c"})
			require.NoError(t, err)
			require.Equal(t, id, m.ID)
			require.Len(t, m.Statuses, 2)
			p, err := r.PreviewMessage(t.Context(), ada, ops.MessageRef{ID: id, Namespace: "c"}, ops.PreviewBounds{Content: 9})
			require.NoError(t, err)
			require.Equal(t, m.Content, p.Payload.Bytes)
		}
		audit, err := o.Audit(t.Context(), ops.AuditFilter{Action: ops.ActionView}, "", 0)
		require.NoError(t, err)
		require.Len(t, audit.Items, 4)
		_, from = o.Reader(t.Context())
		require.True(t, from.Replica, "a view is no action: %s", from)

		_, err = r.Message(t.Context(), "", ops.MessageRef{ID: "m", Namespace: "c"})
		require.ErrorIs(t, err, ops.ErrBadInput, "without an actor nothing is shown")
		inboxtest.Exec(t, c.d.DB, "ALTER TABLE inbox_audit RENAME TO gone")
		_, err = r.Message(t.Context(), ada, ops.MessageRef{ID: "m", Namespace: "c"})
		require.ErrorIs(t, err, ops.ErrNotAudited)
	})
}

// TestReaderReadsThePrimaryWhenTheReplicaIsOfNoUse proves contract 11.7.
func TestReaderReadsThePrimaryWhenTheReplicaIsOfNoUse(t *testing.T) {
	onCopied(t, func(t *testing.T, c *copied) {
		replica := c.replicate()
		o := c.reading(replica)
		inboxtest.Exec(t, replica, "UPDATE inbox_meta SET value = 'other' WHERE key = 'name'")
		r, from := o.Reader(t.Context())
		require.Equal(t, "Read from the primary: the replica is of another inbox", from.String())
		require.Equal(t, []string{"m"}, c.poisonedIn(r))

		pool, err := replica.DB()
		require.NoError(t, err)
		require.NoError(t, pool.Close())
		r, from = o.Reader(t.Context())
		require.Equal(t, "Read from the primary: the replica does not answer", from.String())
		require.Error(t, from.Err)
		require.Equal(t, []string{"m"}, c.poisonedIn(r))

		r, from = c.ops.Reader(context.Background())
		require.Empty(t, from.String(), "without a replica there is nothing to say")
		require.Equal(t, []string{"m"}, c.poisonedIn(r))
		tx := c.d.DB.Begin()
		_, err = c.ib.Ops(func(o *ops.Options) { o.Replica = tx })
		require.ErrorContains(t, err, "option Replica")
		require.NoError(t, tx.Rollback().Error)
	})
}
