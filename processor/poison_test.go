package processor_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
)

// deleteMessage deletes a message but not its statuses, which the foreign key would not allow.
func deleteMessage(t *testing.T, d *inboxtest.Database, id string) {
	t.Helper()
	if d.Dialect != "sqlite" {
		inboxtest.Exec(t, d.DB, "ALTER TABLE inbox_handler_statuses DROP CONSTRAINT inbox_handler_statuses_message_fk")
		inboxtest.Exec(t, d.DB, "DELETE FROM inbox_messages WHERE id = ?", id)
		return
	}
	require.NoError(t, d.DB.Connection(func(c *gorm.DB) error {
		inboxtest.Exec(t, c, "PRAGMA foreign_keys = 0")
		inboxtest.Exec(t, c, "DELETE FROM inbox_messages WHERE id = ?", id)
		return c.Exec("PRAGMA foreign_keys = 1").Error
	}))
}

func TestUnrunnableStatusIsPoisonedImmediatelyUncharged(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("plain", inboxtest.Nothing),
			inboxtest.Tx("tx", nothingTx)))
		inboxtest.Accept(t, ib, "deleted", "unreadable", "fine")
		deleteMessage(t, d, "deleted")
		inboxtest.Exec(t, d.DB, "UPDATE inbox_messages SET serialized_properties = '{' WHERE id = 'unreadable'")

		require.Equal(t, processor.Drained{Picked: 6, Completed: 2, Poisoned: 4}, inboxtest.Process(t, ib))
		for _, key := range []string{"plain", "tx"} {
			for id, reason := range map[string]string{"deleted": `message "deleted" is deleted`,
				"unreadable": "stored properties are unreadable", "fine": ""} {
				s := inboxtest.Status(t, ib, id, key)
				require.Equal(t, reason != "", s.IsPoisoned, "%s/%s", id, key)
				require.Zero(t, s.ErrorCount)
				require.Nil(t, s.ProcessingStartedAt)
				if reason != "" {
					require.Contains(t, *s.LastError, reason)
				}
			}
		}
		require.EqualValues(t, 4, ib.Counters().Poisoned)
	})
}

// Contract 5.7: nothing is lost by a program that is down, or drains rarely.
func TestStatusesOfAnUnknownKeyWaitAndAreReported(t *testing.T) {
	testenv.Long(t)
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		with := inboxtest.New(t, d.DB, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do("old", inboxtest.Nothing),
			inboxtest.Do("lanes", inboxtest.Nothing, handler.Ordered()), inboxtest.Do("kept", inboxtest.Nothing)))
		inboxtest.Accept(t, with, "1")
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.Another(t), inboxtest.Brisk(), log, inbox.Configure(func(o *inbox.Options) {
			o.Processor.UnknownKeyGrace = 1500 * time.Millisecond
		}),
			inboxtest.Handlers(inboxtest.Do("kept", inboxtest.Nothing)))
		reported := func() (keys []string) {
			for _, r := range ib.Health().Reasons {
				if r.Code == "unknown_handler" {
					require.Equal(t, inbox.HealthDegraded, r.State)
					keys = append(keys, r.HandlerKey)
				}
			}
			return keys
		}
		began := time.Now()
		end := inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool { return slices.Equal(reported(), []string{"lanes", "old"}) },
			"health reports them")
		require.GreaterOrEqual(t, time.Since(began), 1500*time.Millisecond)
		operator, err := ib.Ops()
		require.NoError(t, err)
		inboxtest.Eventually(t, func() bool {
			seen, err := operator.Overview(t.Context())
			require.NoError(t, err)
			return slices.ContainsFunc(seen.Reasons, func(r ops.HealthReason) bool {
				return r.Code == "unknown_handler" && r.HandlerKey == "old"
			})
		}, "operators see it")
		inboxtest.Eventually(t, func() bool { return logs.FilterMessageSnippet("no program lists").Len() >= 2 }, "it is logged")
		end()
		for _, key := range []string{"old", "lanes"} {
			s := inboxtest.Status(t, ib, "1", key)
			require.False(t, s.IsPoisoned, key)
			require.EqualValues(t, 1, s.Version, key)
			require.Equal(t, 1, logs.FilterMessageSnippet("no program lists").FilterField(zap.String("handler_key", key)).Len(),
				key)
		}
		require.Equal(t, processor.Drained{Picked: 2, Completed: 2}, inboxtest.Process(t, with), "its program is back")
	})
}

func TestKeyOfAnotherLivingWorkerIsNotUnknown(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		other := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Do("theirs", inboxtest.Nothing), inboxtest.Do("ours", inboxtest.Nothing)))
		inboxtest.Accept(t, other, "1")
		require.NoError(t, heartbeat(t, d, clock, worker("0192f000-0000-7000-8000-000000000001", "theirs")))
		ib := inboxtest.New(t, d.Another(t), inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
			inboxtest.Handlers(inboxtest.Do("ours", inboxtest.Nothing)))
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, inboxtest.Process(t, ib))
		require.False(t, inboxtest.Status(t, ib, "1", "theirs").IsPoisoned)
	})
}
