package mysql_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
)

func (p *parted) acceptTx(tx *gorm.DB, id string) error {
	_, err := p.store.AcceptTx(p.Context(), tx, p.batch(noon, id))
	return err
}

// TestStatementForAnotherLayoutChangesNothingWrong proves contract 6.8: a program that does not know of a change of the
// layout finds nothing wrong and changes nothing wrong.
func TestStatementForAnotherLayoutChangesNothingWrong(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		dsn := testenv.MySQLDSN(t, variable)
		p := openParted(t, dsn)
		var late [5]*parted
		for i := range late {
			late[i] = openParted(t, dsn)
			found, err := late[i].store.Partitioned(t.Context())
			require.NoError(t, err)
			require.False(t, found)
		}
		require.True(t, late[0].accept(noon, "first")[0])
		o, err := ops.New(late[4].db)
		require.NoError(t, err)
		list := func() (statuses []string) {
			page, err := o.List(t.Context(), ops.Filter{MessageID: "first"}, "", 10)
			if store.IsTransient(err) {
				page, err = o.List(t.Context(), ops.Filter{MessageID: "first"}, "", 10)
			}
			require.NoError(t, err)
			for _, item := range page.Items {
				statuses = append(statuses, item.ID)
			}
			return statuses
		}
		require.Len(t, list(), 1)
		require.NoError(t, p.store.Partition(t.Context()))

		var accepts sync.WaitGroup
		for i := range 12 {
			accepts.Go(func() { late[0].accept(noon, fmt.Sprint("m", i)) })
		}
		accepts.Wait()
		late[1].complete(noon, late[1].claim(noon, 20)...)
		acceptTx := func() error {
			return late[2].db.Transaction(func(tx *gorm.DB) error { return late[2].acceptTx(tx, "tx") })
		}
		require.ErrorIs(t, acceptTx(), store.ErrLayoutChanged)
		require.NoError(t, acceptTx())
		_, err = late[3].store.Cleanup(t.Context(), store.CleanupRequest{Cutoff: noon.Add(time.Hour), Limit: 100})
		require.ErrorIs(t, err, store.ErrLayoutChanged)

		// Of a message that was forgotten and accepted again, operators find the second.
		_, kept := p.clean(noon.Add(-time.Hour), time.Hour, noon.Add(2*time.Hour))
		require.Equal(t, 1, kept.Began)
		before := list()
		_, err = p.store.Cleanup(t.Context(), store.CleanupRequest{Cutoff: noon.Add(time.Hour), Limit: 100})
		require.NoError(t, err)
		require.Equal(t, []bool{true}, p.accept(noon.Add(2*time.Hour), "first"))
		after := list()
		require.Len(t, after, 1)
		require.NotEqual(t, before, after)
		m, err := o.Message(t.Context(), ops.Actor("me"), ops.MessageRef{ID: "first"})
		require.NoError(t, err)
		var number int64
		require.NoError(t, p.db.Raw("SELECT number FROM inbox_message_ids WHERE id = 'first'").Scan(&number).Error)
		require.EqualValues(t, number, m.Number)
		require.NoError(t, o.CheckSchema(t.Context()))
	})
}

// TestTransactionFromBeforeAChangeOfTheLayoutFails proves that a snapshot from before the change sets no program back.
func TestTransactionFromBeforeAChangeOfTheLayoutFails(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		dsn := testenv.MySQLDSN(t, variable)
		p, late := openParted(t, dsn), openParted(t, dsn)
		require.True(t, late.accept(noon, "first")[0])
		tx := late.db.Begin()
		t.Cleanup(func() { tx.Rollback() })
		var one int
		require.NoError(t, tx.Raw("SELECT COUNT(*) FROM inbox_meta").Scan(&one).Error)
		require.NoError(t, p.store.Partition(t.Context()))
		for range 3 {
			if err := late.acceptTx(tx, "late"); err != nil {
				require.True(t, store.IsTransient(err), "%v", err)
			}
		}
		require.NoError(t, tx.Rollback().Error)
		late.accept(noon, "second")
		require.Equal(t, "partitioned", late.store.Layout())
	})
}

// TestFailureWithAnotherCauseIsReturnedAsItIs proves that only the first such failure is taken for a changed layout.
func TestFailureWithAnotherCauseIsReturnedAsItIs(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		p := openParted(t, testenv.MySQLDSN(t, variable))
		require.NoError(t, p.db.Exec("ALTER TABLE inbox_messages RENAME INDEX by_id TO mine").Error)
		err := p.db.Transaction(func(tx *gorm.DB) error { return p.acceptTx(tx, "a") })
		require.ErrorIs(t, err, store.ErrLayoutChanged, "it may be")
		err = p.db.Transaction(func(tx *gorm.DB) error { return p.acceptTx(tx, "a") })
		require.Error(t, err)
		require.NotErrorIs(t, err, store.ErrLayoutChanged)
	})
}

// TestProgramFindsAChangedLayoutWithinAMinute proves that a program whose statements do not fail looks, too.
func TestProgramFindsAChangedLayoutWithinAMinute(t *testing.T) {
	onBoth(t, func(t *testing.T, variable string) {
		dsn := testenv.MySQLDSN(t, variable)
		p, late := openParted(t, dsn), openParted(t, dsn)
		require.Equal(t, "plain", late.store.Layout())
		require.NoError(t, p.store.Partition(t.Context()))
		late.store.Look(context.Background())
		require.Equal(t, "partitioned", late.store.Layout())
	})
}
