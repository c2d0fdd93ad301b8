package synchronous_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// Contract 5.7, 7.6: a message whose statement always ends its server process does not hold its
// partition forever.
func TestMessageAlwaysLosingItsConnectionIsGivenUp(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		written := effects(t, d.DB)
		calls := 0
		r, counters := newRunner(t, d.DB, func(c *synchronous.Config) {
			c.MaxRetries, c.MaxRetryDelay = 2, time.Millisecond
		}, handler.NewTx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
			calls++
			if err := write(tx, m.ID); err != nil {
				return err
			}
			return tx.Exec("SELECT pg_terminate_backend(pg_backend_pid())").Error
		}))
		var failed *synchronous.FailedError
		require.ErrorAs(t, deliver(t, r, 0, "deadly"), &failed)
		require.ErrorContains(t, failed, "5 times in a row, while the database worked for others")
		require.Equal(t, 5, calls)
		require.EqualValues(t, 3, counters.Load(telemetry.Released))
		require.Empty(t, written())
	})
}

func raise(tx *gorm.DB, state string) error {
	return tx.Exec(fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '%s'; END $$", state)).Error
}

func TestFailureOfTheDatabaseInATransactionIsNotCharged(t *testing.T) {
	for name, returns := range map[string]func(error) error{
		"wrapped":   func(err error) error { return fmt.Errorf("save: %w", err) },
		"another":   func(error) error { return errBoom },
		"swallowed": func(error) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				written := effects(t, d.DB)
				calls, state := 0, ""
				r, counters := newRunner(t, d.DB, func(c *synchronous.Config) { c.MaxRetries = 1 },
					handler.NewTx("h", func(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
						calls++
						require.Equal(t, 1, m.Attempt)
						if err := write(tx, m.ID); err != nil {
							return err
						}
						if calls <= 4 {
							return returns(raise(tx, state))
						}
						return nil
					}))
				for id, expect := range map[string]struct {
					state    string
					released int64
				}{"full": {"53100", 4}, "collides": {"40001", 0}} {
					calls, state = 0, expect.state
					before := counters.Load(telemetry.Released)
					require.NoError(t, deliver(t, r, 0, id))
					require.Equal(t, 5, calls)
					require.Equal(t, expect.released, counters.Load(telemetry.Released)-before)
				}
				require.Zero(t, counters.Load(telemetry.Failed))
				require.Equal(t, []string{"collides", "full"}, written())
			})
		})
	}
}

func TestErrorOfAnotherDatabaseIsCharged(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		other := raise(d.DB, "53100")
		r, _ := newRunner(t, d.DB, nil, handler.NewTx("h",
			func(context.Context, *gorm.DB, inboxtest.Bytes) error { return other }))
		var failed *synchronous.FailedError
		require.True(t, errors.As(deliver(t, r, 0, "1"), &failed))
		require.Equal(t, 3, failed.Failures[0].Attempts)
	})
}
