package ops_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// TestRetriedRowOfARenamedHandlerRuns proves contract 4.2: after a rolling rename a message may
// have a row under each key, and both may be poisoned. Whichever an operator retries runs.
func TestRetriedRowOfARenamedHandlerRuns(t *testing.T) {
	group := func(key string) ops.Filter { return ops.Filter{HandlerKeys: []string{key}} }
	type steps func(t *testing.T, o *ops.Ops)
	retry := func(key string) func(*testing.T, *ops.Ops) {
		return func(t *testing.T, o *ops.Ops) {
			result, err := o.RetryMatching(t.Context(), ada, group(key), ops.Bulk{})
			require.NoError(t, err)
			require.EqualValues(t, 1, result.Done)
		}
	}
	discard := func(key string) func(*testing.T, *ops.Ops) {
		return func(t *testing.T, o *ops.Ops) {
			result, err := o.DiscardMatching(t.Context(), ada, group(key), ops.Bulk{})
			require.NoError(t, err)
			require.EqualValues(t, 1, result.Done)
		}
	}
	for name, each := range map[string]struct {
		acts          []steps
		before, after models.Outcome
		ran           []string
	}{
		"the old key's row discarded, the new one's retried": {[]steps{discard("before"), retry("now")},
			models.OutcomeDiscarded, models.OutcomeProcessed, []string{"now"}},
		"the new key's row retried, the old one's discarded": {[]steps{retry("now"), discard("before")},
			models.OutcomeDiscarded, models.OutcomeProcessed, []string{"now"}},
		"the new key's row discarded, the old one's retried": {[]steps{discard("now"), retry("before")},
			models.OutcomeProcessed, models.OutcomeDiscarded, []string{"before"}},
		"only the new key's row retried": {[]steps{retry("now")}, models.OutcomeSuperseded,
			models.OutcomeProcessed, []string{"now"}},
		"only the old key's row retried": {[]steps{retry("before")}, models.OutcomeProcessed,
			models.OutcomeSuperseded, []string{"before"}},
		"both discarded": {[]steps{discard("before"), discard("now")},
			models.OutcomeDiscarded, models.OutcomeDiscarded, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
				broken := true
				var ran []string
				run := func(_ context.Context, m inboxtest.Bytes) error {
					if broken {
						return handler.Poison(errors.New("no"))
					}
					ran = append(ran, m.HandlerKey)
					return nil
				}
				renamed := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("now", run, handler.LegacyKeys("before"))))
				old := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("before", run)))
				inboxtest.Accept(t, renamed, "1")
				inboxtest.Process(t, renamed)
				forget(t, d)
				inboxtest.Accept(t, old, "1")
				inboxtest.Process(t, old)
				require.True(t, inboxtest.Status(t, renamed, "1", "now").IsPoisoned)
				require.True(t, inboxtest.Status(t, renamed, "1", "before").IsPoisoned)
				broken = false
				o, err := renamed.Ops()
				require.NoError(t, err)
				for _, act := range each.acts {
					act(t, o)
				}
				inboxtest.Process(t, renamed)
				inboxtest.Process(t, renamed)
				require.Equal(t, each.ran, ran)
				require.Equal(t, each.before, inboxtest.Status(t, renamed, "1", "before").Outcome)
				require.Equal(t, each.after, inboxtest.Status(t, renamed, "1", "now").Outcome)
			})
		})
	}
	t.Run("both retried: one runs", func(t *testing.T) {
		inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
			broken, runs := true, 0
			run := func(context.Context, inboxtest.Bytes) error {
				if broken {
					return handler.Poison(errors.New("no"))
				}
				runs++
				return nil
			}
			renamed := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("now", run, handler.LegacyKeys("before"))))
			old := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("before", run)))
			inboxtest.Accept(t, renamed, "1")
			inboxtest.Process(t, renamed)
			forget(t, d)
			inboxtest.Accept(t, old, "1")
			inboxtest.Process(t, old)
			broken = false
			o, err := renamed.Ops()
			require.NoError(t, err)
			retry("now")(t, o)
			retry("before")(t, o)
			inboxtest.Process(t, renamed)
			inboxtest.Process(t, renamed)
			require.Equal(t, 1, runs)
			require.True(t, inboxtest.AllCompleted(t, renamed))
		})
	})
}

// forget lets a program that knows only the old key add a second row, as it could if the new program had dropped that
// key too early.
func forget(t *testing.T, d *inboxtest.Database) {
	t.Helper()
	inboxtest.Exec(t, d.DB, `UPDATE inbox_handlers SET legacy_keys = ''`)
}
