package processor_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

func TestHandlerErrorsDecideRetryPoisonAndSnooze(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		wrapped := func(err error) error { return fmt.Errorf("outer: %w", errors.Join(err, errors.New("and more"))) }
		for name, tc := range map[string]struct {
			err             error
			poisoned        bool
			errors          int
			next            time.Duration
			lastError       string
			drained         processor.Drained
			failed, snoozed int64
		}{
			"RetryAfter": {err: handler.RetryAfter(time.Hour, errBoom), errors: 1, next: time.Hour,
				lastError: "retry after 1h0m0s: boom", drained: processor.Drained{Picked: 1, Failed: 1}, failed: 1},
			"RetryAfter, wrapped": {err: wrapped(handler.RetryAfter(time.Hour, errBoom)), errors: 1, next: time.Hour,
				lastError: "outer: retry after 1h0m0s: boom\nand more", drained: processor.Drained{Picked: 1, Failed: 1},
				failed: 1},
			"RetryAfter(0)": {err: handler.RetryAfter(0, errBoom), errors: 1, next: time.Microsecond,
				lastError: "retry after 0s: boom", drained: processor.Drained{Picked: 1, Failed: 1}, failed: 1},
			"Poison": {err: handler.Poison(errBoom), poisoned: true, errors: 1, lastError: "poison: boom",
				drained: processor.Drained{Picked: 1, Poisoned: 1}, failed: 1},
			"Poison, wrapped": {err: wrapped(handler.Poison(errBoom)), poisoned: true, errors: 1,
				lastError: "outer: poison: boom\nand more", drained: processor.Drained{Picked: 1, Poisoned: 1}, failed: 1},
			"Snooze": {err: handler.Snooze(time.Hour), next: time.Hour,
				drained: processor.Drained{Picked: 1, Released: 1}, snoozed: 1},
			"Snooze, wrapped": {err: wrapped(handler.Snooze(time.Hour)), next: time.Hour,
				drained: processor.Drained{Picked: 1, Released: 1}, snoozed: 1},
			"Snooze(0)": {err: handler.Snooze(0), next: time.Microsecond,
				drained: processor.Drained{Picked: 1, Released: 1}, snoozed: 1},
		} {
			clock := fxtest.NewClock(inboxtest.Noon)
			ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = clock }),
				inboxtest.Handlers(inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error { return tc.err })))
			inboxtest.Exec(t, d.DB, "DELETE FROM inbox_handler_statuses")
			inboxtest.Accept(t, ib, name)
			require.Equal(t, tc.drained, inboxtest.Process(t, ib), name)
			s := inboxtest.Status(t, ib, name, "h")
			require.Equal(t, tc.poisoned, s.IsPoisoned, name)
			require.Equal(t, tc.errors, s.ErrorCount, name)
			require.Nil(t, s.ProcessingStartedAt, name)
			if tc.next > 0 {
				require.Equal(t, inboxtest.Noon.Add(tc.next), s.NextAttemptAt.UTC(), name)
			} else {
				require.Nil(t, s.NextAttemptAt, name)
			}
			if tc.lastError == "" {
				require.Nil(t, s.LastError, name)
			} else {
				require.Equal(t, tc.lastError, *s.LastError, name)
			}
			require.Equal(t, tc.failed, ib.Counters().Failed, name)
			require.Equal(t, tc.snoozed, ib.Counters().Snoozed, name)
		}
	})
}

func TestRetryAfterRunsOutOfAttemptsAndSnoozeDoesNot(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		clock := fxtest.NewClock(inboxtest.Noon)
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = clock
			o.Processor.MaxRetries = 3
		}), inboxtest.Handlers(
			inboxtest.Do("retries", func(context.Context, inboxtest.Bytes) error {
				return handler.RetryAfter(time.Second, errBoom)
			}),
			inboxtest.Do("snoozes", func(context.Context, inboxtest.Bytes) error { return handler.Snooze(time.Second) }),
		))
		inboxtest.Accept(t, ib, "1")
		for range 10 {
			inboxtest.Process(t, ib)
			clock.Advance(time.Second)
		}
		require.True(t, inboxtest.Status(t, ib, "1", "retries").IsPoisoned)
		require.Equal(t, 3, inboxtest.Status(t, ib, "1", "retries").ErrorCount)
		s := inboxtest.Status(t, ib, "1", "snoozes")
		require.False(t, s.IsPoisoned)
		require.Zero(t, s.ErrorCount)
		require.EqualValues(t, 10, ib.Counters().Snoozed)
	})
}

func TestUndecodableBodyIsPoisonedUnlessCodecAsksForRetry(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		type order struct{ N int }
		type orders = handler.Message[order]
		codec := func(err error) handler.Option {
			return handler.WithCodec(handler.CodecFunc[order](func(handler.Metadata, []byte) (order, error) {
				return order{}, err
			}))
		}
		nothing := func(context.Context, orders) error { return nil }
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
		}), inboxtest.Handlers(
			inbox.Func("plain", nothing),
			inbox.Tx("tx", func(context.Context, *gorm.DB, orders) error { return nil }),
			inbox.Batch("batch", 2, func(context.Context, []orders) error { return nil }),
			inbox.Func("retries", nothing, codec(handler.RetryAfter(time.Minute, errBoom))),
			inbox.Func("snoozes", nothing, codec(handler.Snooze(time.Minute)))))
		inboxtest.Accept(t, ib, "not json")
		drained := inboxtest.Process(t, ib)
		for _, key := range []string{"plain", "tx", "batch"} {
			s := inboxtest.Status(t, ib, "not json", key)
			require.True(t, s.IsPoisoned, key)
			require.Zero(t, s.ErrorCount, key)
			require.Contains(t, *s.LastError, fmt.Sprintf("decode body for handler %q", key))
		}
		require.Equal(t, processor.Drained{Picked: 5, Poisoned: 3, Failed: 1, Released: drained.Released}, drained)
		s := inboxtest.Status(t, ib, "not json", "retries")
		require.Equal(t, 1, s.ErrorCount)
		require.Equal(t, inboxtest.Noon.Add(time.Minute), s.NextAttemptAt.UTC())
		s = inboxtest.Status(t, ib, "not json", "snoozes")
		require.False(t, s.IsPoisoned)
		require.Zero(t, s.ErrorCount)
	})
}

func TestRecordingAFailureNeverFails(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		for name, tc := range map[string]struct{ text, want string }{
			"2,000 characters":      {strings.Repeat("é", 2000), strings.Repeat("é", 2000)},
			"2,001 characters":      {strings.Repeat("é", 2001), strings.Repeat("é", 2000)},
			"cut within a sequence": {"x" + strings.Repeat("🦊", 2500), "x" + strings.Repeat("🦊", 1999)},
			"NUL":                   {"a\x00b", "a\uFFFDb"},
			"invalid UTF-8":         {"a\xff\xfeb", "a\uFFFDb"},
			"empty":                 {"", ""},
			"megabytes":             {strings.Repeat("\xff\x00", 5<<20), ""},
		} {
			ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
				o.Clock = fxtest.NewClock(inboxtest.Noon)
			}), inboxtest.Handlers(
				inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error { return errors.New(tc.text) })))
			inboxtest.Exec(t, d.DB, "DELETE FROM inbox_handler_statuses")
			inboxtest.Accept(t, ib, name)
			require.Equal(t, 1, inboxtest.Process(t, ib).Failed, name)
			got := *inboxtest.Status(t, ib, name, "h").LastError
			require.True(t, utf8.ValidString(got))
			require.LessOrEqual(t, utf8.RuneCountInString(got), 2000)
			if name != "megabytes" {
				require.Equal(t, tc.want, got, name)
			}
		}
	})
}

func explode(context.Context, inboxtest.Bytes) error {
	var nothing []int
	return fmt.Errorf("never: %d", nothing[len(nothing)]) // panics
}

func TestPanicIsAFailureWithItsStack(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Clock = fxtest.NewClock(inboxtest.Noon) }),
			inboxtest.Handlers(inboxtest.Do("h", explode), inboxtest.Do("sibling", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, processor.Drained{Picked: 2, Failed: 1, Completed: 1}, inboxtest.Process(t, ib))
		s := inboxtest.Status(t, ib, "1", "h")
		require.Equal(t, 1, s.ErrorCount)
		require.Contains(t, *s.LastError, "handler panicked: runtime error: index out of range")
		_, stack, _ := strings.Cut(*s.LastError, "\n\n")
		require.Regexp(t, `^[^\n]*explode\n`, stack, "the stack begins with the function that panicked")
		require.NotContains(t, stack, "internal/attempt", "it has no frames of the library")
	})
}

func TestPanicWithASteeringErrorSteers(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error {
			panic(handler.Poison(errBoom))
		})))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, 1, inboxtest.Process(t, ib).Poisoned)
	})
}

func TestGoexitIsAFailure(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
			o.Clock = fxtest.NewClock(inboxtest.Noon)
		}), inboxtest.Handlers(
			inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error { runtime.Goexit(); return nil })))
		inboxtest.Accept(t, ib, "1")
		require.Equal(t, 1, inboxtest.Process(t, ib).Failed)
		require.Contains(t, *inboxtest.Status(t, ib, "1", "h").LastError, "runtime.Goexit")
	})
}
