package cleanup_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// old returns an inbox whose messages are completed and due for cleanup.
func old(t *testing.T, d *inboxtest.Database, archive cleanup.Archive, n int, opts ...inbox.Option) *inbox.Inbox {
	t.Helper()
	clock := fxtest.NewClock(inboxtest.Noon.Add(2 * time.Hour))
	opts = append([]inbox.Option{inbox.Configure(func(o *inbox.Options) {
		o.Clock = clock
		o.Cleanup.Retention = time.Hour
		o.Archive = archive
	}),
		inboxtest.Handlers(inboxtest.Do("a", byID))}, opts...)
	ib := inboxtest.New(t, d.DB, opts...)
	batch := store.AcceptBatch{Now: inboxtest.Noon}
	for i := range n {
		id := fmt.Sprintf("%03d", i)
		batch.Messages = append(batch.Messages, store.NewMessage{
			Message: models.Message{ID: id, Type: "t", Content: []byte(id)}, Handlers: []store.NewStatus{{HandlerKey: "a"}},
		})
	}
	_, err := inboxtest.Store(t, d.DB).Accept(context.Background(), batch)
	require.NoError(t, err)
	inboxtest.Exec(t, d.DB, "UPDATE inbox_handler_statuses SET completed_at = created_at, outcome = 'processed'")
	return ib
}

func TestRowsAreArchivedBeforeTheyAreDeleted(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		var got []cleanup.Archived
		var ib *inbox.Inbox
		ib = inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Cleanup.Retention = time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("a", byID), inboxtest.Do("b", halfway)),
			inbox.Configure(func(o *inbox.Options) {
				o.Archive = func(_ context.Context, messages []cleanup.Archived) error {
					got = append(got, messages...)
					require.Len(t, stored(t, ib), 3, "nothing is deleted yet")
					return nil
				}
			}))
		inboxtest.Accept(t, ib, "done", "poisoned", "pending")
		inboxtest.Process(t, ib)
		want := map[string]models.HandlerStatus{}
		for _, s := range inboxtest.Statuses(t, ib) {
			want[s.MessageID+"/"+s.HandlerKey] = s
		}
		clock.Advance(2 * time.Hour)
		require.Equal(t, handler.Deleted{Messages: 1, Statuses: 4}, clean(t, ib))
		require.Equal(t, []string{"pending", "poisoned"}, stored(t, ib))
		require.Len(t, got, 3)
		for _, m := range got {
			require.Equal(t, m.Message.ID, string(m.Message.Content))
			require.Equal(t, m.Message.ID != "done", m.Stays)
			for _, s := range m.Statuses {
				require.Equal(t, want[s.MessageID+"/"+s.HandlerKey].ID, s.ID)
				require.Equal(t, models.OutcomeProcessed, s.Outcome)
			}
			require.Len(t, m.Statuses, map[string]int{"done": 2, "poisoned": 1, "pending": 1}[m.Message.ID])
		}
	})
}

func TestArchiveMayUseTheInboxDatabase(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		inboxtest.Exec(t, d.DB, "CREATE TABLE archive (id varchar(200) PRIMARY KEY, content text)")
		ib := old(t, d, func(ctx context.Context, messages []cleanup.Archived) error {
			tx := d.DB.WithContext(ctx).Begin()
			for _, m := range messages {
				// A lock held by cleanup would block this statement.
				if err := tx.Exec("UPDATE inbox_messages SET source = source WHERE id = ?", m.Message.ID).Error; err != nil {
					return errors.Join(err, tx.Rollback().Error)
				}
				if err := tx.Exec("INSERT INTO archive VALUES (?, ?)", m.Message.ID, string(m.Message.Content)).Error; err != nil {
					return errors.Join(err, tx.Rollback().Error)
				}
			}
			return tx.Commit().Error
		}, 3)
		require.Equal(t, handler.Deleted{Messages: 3, Statuses: 3}, clean(t, ib))
		var archived []string
		require.NoError(t, d.DB.Table("archive").Order("id").Pluck("content", &archived).Error)
		require.Equal(t, []string{"000", "001", "002"}, archived)
	})
}

func TestRefusedMessagesStayAndAreArchivedLater(t *testing.T) {
	testenv.Long(t)
	boom := errors.New("boom")
	for name, refuse := range map[string]func(ctx context.Context) error{
		"error": func(context.Context) error { return boom },
		"panic": func(context.Context) error { panic("boom") },
		"timeout": func(ctx context.Context) error {
			<-ctx.Done()
			return nil // as if the context had not ended
		},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				var calls [][]string
				refusing := true
				log, logs := inboxtest.Observe()
				ib := old(t, d, func(ctx context.Context, messages []cleanup.Archived) error {
					var ids []string
					for _, m := range messages {
						ids = append(ids, m.Message.ID)
					}
					calls = append(calls, ids)
					if refusing && slices.Contains(ids, "002") {
						return refuse(ctx)
					}
					return nil
				}, 6, inbox.Configure(func(o *inbox.Options) {
					o.Cleanup.CleanupBatchSize = 2
					o.Cleanup.ArchiveTimeout = time.Second
				}), log)
				deleted, err := ib.Cleanup(context.Background())
				require.ErrorIs(t, err, cleanup.ErrArchiveFailed)
				if name == "error" {
					require.ErrorIs(t, err, boom)
				}
				require.Equal(t, handler.Deleted{Messages: 5, Statuses: 5, Unarchived: 1}, deleted, "the walk goes on behind it")
				require.Equal(t, []string{"002"}, stored(t, ib))
				require.Len(t, inboxtest.Statuses(t, ib), 1)
				require.Equal(t, 1, logs.FilterMessageSnippet("the archive function failed").Len())
				refusing = false
				require.Equal(t, handler.Deleted{Messages: 1, Statuses: 1}, clean(t, ib))
				require.Equal(t, [][]string{{"000", "001"}, {"002", "003"}, {"002"}, {"003"}, {"004", "005"}, {"002"}}, calls)
			})
		})
	}
}

func TestUnarchivableMessageBlocksNoOthers(t *testing.T) {
	for name, bad := range map[string][]string{
		"the first": {"000"}, "one between": {"007"}, "the last": {"019"}, "several": {"003", "004", "005", "011", "018"},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
				ib := old(t, d, func(_ context.Context, messages []cleanup.Archived) error {
					for _, m := range messages {
						if slices.Contains(bad, m.Message.ID) {
							return fmt.Errorf("%s cannot be archived", m.Message.ID)
						}
					}
					return nil
				}, 20)
				n := int64(len(bad))
				deleted, err := ib.Cleanup(context.Background())
				require.ErrorIs(t, err, cleanup.ErrArchiveFailed)
				require.Equal(t, handler.Deleted{Messages: 20 - n, Statuses: 20 - n, Unarchived: n}, deleted, "in one run")
				require.Equal(t, bad, stored(t, ib))
			})
		})
	}
}

func TestFailingArchiveIsNotCalledForEachMessage(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		calls := 0
		ib := old(t, d, func(context.Context, []cleanup.Archived) error {
			calls++
			return errors.New("down")
		}, 600, inbox.Configure(func(o *inbox.Options) { o.Cleanup.CleanupBatchSize = 50 }))
		deleted, err := ib.Cleanup(context.Background())
		require.ErrorIs(t, err, cleanup.ErrArchiveFailed)
		require.Equal(t, handler.Deleted{Unarchived: 500}, deleted, "ten batches")
		require.Equal(t, 30+9, calls, "the first one is halved for some time")
		require.Len(t, stored(t, ib), 600)
	})
}

func TestFailingArchiveEndsTheCleanupRun(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		calls := 0
		ib := old(t, d, func(context.Context, []cleanup.Archived) error {
			calls++
			return errors.New("down")
		}, 15, inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.CleanupBatchSize = 1
			o.Cleanup.SweepMarkers = true
		}))
		inboxtest.Exec(t, d.DB,
			"INSERT INTO inbox_markers (message_id, handler_key, namespace, message_type, processed_at, expires_at) VALUES ('1', 'h', '', 't', ?, ?)",
			longAgo, longAgo)
		deleted, err := ib.Cleanup(context.Background())
		require.ErrorIs(t, err, cleanup.ErrArchiveFailed)
		require.Equal(t, handler.Deleted{Unarchived: 10, Markers: 1}, deleted, "what needs no archive is pruned all the same")
		require.Equal(t, 10, calls)
		require.Len(t, stored(t, ib), 15)
	})
}

func TestMessageGainingAStatusDuringArchivingStays(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		st := inboxtest.Store(t, d.DB)
		ib := old(t, d, func(ctx context.Context, messages []cleanup.Archived) error {
			_, err := st.Accept(ctx, store.AcceptBatch{Now: inboxtest.Noon, Messages: []store.NewMessage{{
				Message:  models.Message{ID: "001", Type: "t", Content: []byte("001")},
				Handlers: []store.NewStatus{{HandlerKey: "late"}},
			}}})
			return err
		}, 3)
		require.Equal(t, handler.Deleted{Messages: 2, Statuses: 3}, clean(t, ib))
		require.Equal(t, []string{"001/late"}, statuses(t, ib))
	})
}

func TestLostLeaseEndsTheArchiveCallAndDeletesNothing(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ended := make(chan struct{})
		ib := old(t, d, func(ctx context.Context, _ []cleanup.Archived) error {
			inboxtest.Exec(t, d.DB, "UPDATE inbox_locks SET owner_id = '0192f000-0000-7000-8000-000000000001'")
			<-ctx.Done()
			close(ended)
			return nil
		}, 3, inbox.Configure(func(o *inbox.Options) { o.Processor.StatementTimeout = 3 * time.Second }))
		deleted, err := ib.Cleanup(context.Background())
		require.ErrorIs(t, err, cleanup.ErrLeaseHeld)
		require.Zero(t, deleted)
		require.Len(t, stored(t, ib), 3)
		inboxtest.Receive(t, ended, "the end of the archive call")
	})
}

func TestSlowArchiveKeepsTheLease(t *testing.T) {
	// Not on SQLite: there the injected clock, which stands still, decides when leases end.
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		other := d.Another(t)
		expires := func() (at time.Time) {
			var lock models.Lock
			require.NoError(t, other.Where("name = ?", "cleanup").Take(&lock).Error)
			return lock.ExpiresAt
		}
		ib := old(t, d, func(context.Context, []cleanup.Archived) error {
			first := expires()
			inboxtest.Eventually(t, func() bool { return expires().After(first) }, "the lease was renewed")
			return nil
		}, 1, inbox.Configure(func(o *inbox.Options) { o.Processor.StatementTimeout = 3 * time.Second }))
		require.EqualValues(t, 1, clean(t, ib).Messages)
	})
}

func TestOneOfTwoConcurrentCleanersCleans(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		entered, leave := make(chan struct{}), make(chan struct{})
		ib := old(t, d, func(context.Context, []cleanup.Archived) error {
			close(entered)
			<-leave
			return nil
		}, 1)
		second := inboxtest.New(t, d.Another(t), inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon.Add(2 * time.Hour))
			o.Cleanup.Retention = time.Hour
		}),
			inboxtest.Handlers(inboxtest.Do("a", byID)))
		var first sync.WaitGroup
		first.Add(1)
		go func() {
			defer first.Done()
			deleted, err := ib.Cleanup(context.Background())
			if err != nil || deleted.Messages != 1 {
				t.Errorf("deleted %v, error %v", deleted, err)
			}
		}()
		inboxtest.Receive(t, entered, "the first cleaner")
		_, err := second.Cleanup(context.Background())
		require.ErrorIs(t, err, cleanup.ErrLeaseHeld)
		require.Len(t, stored(t, ib), 1)
		close(leave)
		first.Wait()
	})
}

func TestStopEndsTheCurrentRun(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		entered := make(chan struct{})
		var calls atomic.Int32
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.Retention = time.Millisecond
			o.Cleanup.CleanupInterval = 50 * time.Millisecond
		}),
			inboxtest.Handlers(inboxtest.Do("a", byID)),
			inbox.Configure(func(o *inbox.Options) {
				o.Archive = func(ctx context.Context, _ []cleanup.Archived) error {
					if calls.Add(1) == 1 {
						close(entered)
					}
					<-ctx.Done()
					return nil // as if all were well
				}
			}))
		inboxtest.Accept(t, ib, "1")
		require.NoError(t, ib.Start(context.Background()))
		inboxtest.Receive(t, entered, "the archive call")
		ctx, cancel := context.WithTimeout(context.Background(), inboxtest.Patience)
		defer cancel()
		require.NoError(t, ib.Stop(ctx))
		require.Equal(t, []string{"1"}, stored(t, ib))
		var leases int64
		require.NoError(t, d.DB.Model(&models.Lock{}).Where("name = ?", "cleanup").Count(&leases).Error)
		require.Zero(t, leases, "the lease is given up")
	})
}
