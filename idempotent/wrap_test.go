package idempotent_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
)

func TestMessageIsHandledOnceByEachHandler(t *testing.T) {
	var calls []string
	r := receiver(t, memory(t))
	handlers := map[string]func(context.Context, message) error{}
	for _, key := range []string{"billing", "mail"} {
		handlers[key] = handle(t, r, key, func(_ context.Context, m message) error {
			calls = append(calls, key+" "+m.ID)
			return nil
		})
	}
	for range 2 {
		for _, key := range []string{"billing", "mail"} {
			for _, id := range []string{"m1", "m2"} {
				require.NoError(t, handlers[key](t.Context(), withID(id)))
			}
		}
	}
	require.Equal(t, []string{"billing m1", "billing m2", "mail m1", "mail m2"}, calls)
	require.Equal(t, idempotent.Counts{Processed: 4, DuplicateSkipped: 4}, r.Counts())
}

// Contract 8.3.
func TestMessageIsNoDuplicateOnAnotherChannel(t *testing.T) {
	store := memory(t)
	calls := map[string]int{}
	handler := func(name string, opts ...idempotent.Option) func(context.Context, message) error {
		handle, err := idempotent.Wrap(store, "transfer", func(context.Context, message) error {
			calls[name]++
			return nil
		}, opts...)
		require.NoError(t, err)
		return handle
	}
	for range 2 {
		for _, handle := range []func(context.Context, message) error{
			handler("none"), handler("core", idempotent.Configure(func(o *idempotent.Options) { o.Channel = "core" })),
			handler("partners", idempotent.Configure(func(o *idempotent.Options) {
				o.Channel = "partners"
			})),
			handler("shared", idempotent.Configure(func(o *idempotent.Options) {
				o.Channel = "eu"
				o.IDNamespace = "world"
			})),
			handler("its other", idempotent.Configure(func(o *idempotent.Options) {
				o.Channel = "us"
				o.IDNamespace = "world"
			})),
		} {
			require.NoError(t, handle(t.Context(), withID("m1")))
		}
	}
	require.Equal(t, map[string]int{"none": 1, "core": 1, "partners": 1, "shared": 1}, calls)
	_, err := idempotent.Wrap(store, "transfer", func(context.Context, message) error { return nil },
		idempotent.Configure(func(o *idempotent.Options) { o.IDNamespace = strings.Repeat("n", 201) }))
	require.ErrorContains(t, err,
		"namespace of IDs has 201 characters, at most 200 are allowed: give a shorter one to IDNamespace")
}

// Contract 8.3: while a rename is rolled out, each program skips what the other has handled.
func TestOldAndNewProgramSkipMessagesTheOtherHandled(t *testing.T) {
	store := memory(t)
	var calls []string
	program := func(key string, opts ...idempotent.Option) func(context.Context, message) error {
		handle, err := idempotent.Wrap(store, key, func(_ context.Context, m message) error {
			calls = append(calls, key+" "+m.ID)
			return nil
		}, opts...)
		require.NoError(t, err)
		return handle
	}
	before := program("charge")
	after := program("bill", idempotent.LegacyKeys("charge"))
	for _, step := range []struct {
		handle func(context.Context, message) error
		id     string
	}{{before, "m1"}, {after, "m1"}, {after, "m2"}, {before, "m2"}} {
		require.NoError(t, step.handle(t.Context(), withID(step.id)))
	}
	require.Equal(t, []string{"charge m1", "bill m2"}, calls)
	for _, keys := range [][]string{{""}, {"bill"}, {"a", "a"}} {
		_, err := idempotent.Wrap(store, "bill", nothing[message], idempotent.LegacyKeys(keys...))
		require.ErrorContains(t, err, fmt.Sprintf("legacy key %q", keys[len(keys)-1]))
	}
}

func TestUnhandledMessageIsHandledOnRedelivery(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error":            func() error { return errHandler },
		"panic":            func() error { panic(errHandler) },
		"goroutine's end":  func() error { runtime.Goexit(); return nil },
		"cancelled":        func() error { return context.Canceled },
		"in progress":      func() error { return fmt.Errorf("what it wraps: %w", idempotent.ErrInProgress) },
		"a duplicate's":    func() error { return &idempotent.DuplicateError{} },
		"a missing ID's":   func() error { return idempotent.ErrMissingID },
		"a claim's losing": func() error { return idempotent.ErrLost },
	} {
		t.Run(name, func(t *testing.T) {
			r, calls := receiver(t, memory(t)), 0
			h := handle(t, r, "billing", func(context.Context, message) error {
				if calls++; calls == 1 {
					return fail()
				}
				return nil
			})
			ended := make(chan any, 1)
			go func() {
				result := any(errors.New("the goroutine has ended"))
				defer func() {
					if v := recover(); v != nil {
						result = v
					}
					ended <- result
				}()
				result = h(t.Context(), withID("m1"))
			}()
			err, _ := (<-ended).(error)
			require.Error(t, err)
			if name == "panic" {
				require.Equal(t, errHandler, err, "the panic goes on to the caller")
			}
			require.NoError(t, h(t.Context(), withID("m1")))
			require.NoError(t, h(t.Context(), withID("m1")))
			require.Equal(t, 2, calls)
			counts := r.Counts()
			require.Equal(t, []int64{1, 1, 1}, []int64{counts.Failed + counts.InProgress + counts.Lost, counts.Processed,
				counts.DuplicateSkipped})
		})
	}
}

func TestOneOfConcurrentDuplicatesIsHandled(t *testing.T) {
	var calls atomic.Int32
	r := receiver(t, memory(t))
	h := handle(t, r, "billing", func(context.Context, message) error { calls.Add(1); return nil })
	results := make([]error, 50)
	var done sync.WaitGroup
	for i := range results {
		done.Add(1)
		go func() {
			defer done.Done()
			results[i] = h(t.Context(), withID("m1"))
		}()
	}
	done.Wait()
	require.NoError(t, errors.Join(results...))
	require.EqualValues(t, 1, calls.Load())
	require.Equal(t, idempotent.Counts{Processed: 1, DuplicateSkipped: 49}, r.Counts())
}

func TestDuplicatesAreSkippedLoggedOrFail(t *testing.T) {
	for policy, want := range map[idempotent.DuplicatePolicy]struct {
		logged int
		err    error
	}{
		idempotent.SkipDuplicates: {},
		idempotent.LogDuplicates:  {logged: 1},
		idempotent.FailDuplicates: {err: &idempotent.DuplicateError{Key: idempotent.Key{MessageID: "m1",
			HandlerKey: "billing"}}},
	} {
		t.Run(string(policy), func(t *testing.T) {
			log, logs := observe()
			r, calls := receiver(t, memory(t), idempotent.Configure(func(o *idempotent.Options) {
				o.Duplicates = policy
			}), log), 0
			h := handle(t, r, "billing", func(context.Context, message) error { calls++; return nil })
			require.NoError(t, h(t.Context(), withID("m1")))
			require.Zero(t, logs.Len())
			require.Equal(t, want.err, h(t.Context(), withID("m1")))
			require.Equal(t, 1, calls)
			require.Equal(t, want.logged, logs.FilterMessageSnippet("duplicate skipped").Len())
			require.EqualValues(t, 1, r.Counts().DuplicateSkipped)
		})
	}
}

func TestMessageWithoutIDIsRefused(t *testing.T) {
	r := receiver(t, memory(t))
	h := handle(t, r, "billing", func(context.Context, message) error { panic("called") })
	err := h(t.Context(), withID(""))
	var idErr *idempotent.IDError
	require.ErrorAs(t, err, &idErr)
	require.Equal(t, "billing", idErr.HandlerKey)
	require.ErrorIs(t, err, idempotent.ErrMissingID)
	require.EqualError(t, err, `handler "billing": message ID is missing`)
	require.Equal(t, idempotent.Counts{MissingKey: 1}, r.Counts())
}

func TestMessageWithoutIDIsHandledEachTimeIfAllowed(t *testing.T) {
	log, logs := observe()
	r, calls := receiver(t, memory(t), idempotent.Configure(func(o *idempotent.Options) {
		o.AllowMissingID = true
	}), log), 0
	h := handle(t, r, "billing", func(context.Context, message) error {
		if calls++; calls == 3 {
			return errHandler
		}
		return nil
	})
	require.NoError(t, h(t.Context(), withID("")))
	require.NoError(t, h(t.Context(), withID("")))
	require.Equal(t, errHandler, h(t.Context(), withID("")))
	require.Equal(t, 3, calls)
	require.Equal(t, 1, logs.FilterMessageSnippet("message without ID").Len(), "logged once")
	require.Equal(t, idempotent.Counts{MissingKey: 3, Undeduplicated: 2, Failed: 1}, r.Counts())

	require.ErrorIs(t, h(t.Context(), withID("a\x00b")), envelope.ErrBadID, "an ID that cannot be is not a missing one")
	require.Equal(t, 3, calls)
}

func TestIDsOfUpTo200CharactersAreRemembered(t *testing.T) {
	r, calls := receiver(t, memory(t), idempotent.Configure(func(o *idempotent.Options) { o.AllowMissingID = true })), 0
	h := handle(t, r, strings.Repeat("語", 200), func(context.Context, message) error { calls++; return nil })
	for _, character := range []string{"x", "é", "語", "🙂"} {
		for range 2 {
			require.NoError(t, h(t.Context(), withID(strings.Repeat(character, 200))))
		}
		err := h(t.Context(), withID(strings.Repeat(character, 201)))
		var tooLong *envelope.IDTooLongError
		require.ErrorAs(t, err, &tooLong)
		require.Equal(t, 201, tooLong.Length)
		var idErr *idempotent.IDError
		require.ErrorAs(t, err, &idErr)
	}
	require.Equal(t, 4, calls)
	require.Equal(t, idempotent.Counts{Processed: 4, DuplicateSkipped: 4, InvalidKey: 4}, r.Counts())
}

func TestStoreErrorsAreNotAcknowledged(t *testing.T) {
	down := errors.New("the store is down")
	for name, c := range map[string]struct {
		err  error
		want idempotent.Counts
	}{
		"in progress": {fmt.Errorf("store: %w", idempotent.ErrInProgress), idempotent.Counts{InProgress: 1}},
		"lost":        {fmt.Errorf("store: %w", idempotent.ErrLost), idempotent.Counts{Lost: 1}},
		"down":        {down, idempotent.Counts{StoreFailed: 1}},
	} {
		for _, policy := range []idempotent.DuplicatePolicy{idempotent.SkipDuplicates, idempotent.FailDuplicates} {
			for when, store := range map[string]storeFunc{
				"before": func(context.Context, idempotent.Run, func(context.Context) error) (bool, error) { return false, c.err },
				"after": func(ctx context.Context, _ idempotent.Run, body func(context.Context) error) (bool, error) {
					return false, errors.Join(body(ctx), c.err)
				},
				"and says duplicate": func(context.Context, idempotent.Run, func(context.Context) error) (bool,
					error) {
					return true, c.err
				},
			} {
				t.Run(name+" "+when+", "+string(policy), func(t *testing.T) {
					r := receiver(t, store, idempotent.Configure(func(o *idempotent.Options) { o.Duplicates = policy }))
					require.ErrorIs(t, handle(t, r, "billing", nothing[message])(t.Context(), withID("m1")), c.err)
					require.Equal(t, c.want, r.Counts())
				})
			}
		}
	}
}

// A store is foreign code: its mistake must not acknowledge a message that was not handled.
func TestStoreSuccessWithoutCallingTheHandlerIsAnError(t *testing.T) {
	t.Run("it called nothing", func(t *testing.T) {
		r := receiver(t, storeFunc(func(context.Context, idempotent.Run, func(context.Context) error) (bool,
			error) {
			return false, nil
		}))
		require.ErrorContains(t, handle(t, r, "billing", nothing[message])(t.Context(), withID("m1")), "called nothing")
		require.Equal(t, idempotent.Counts{StoreFailed: 1}, r.Counts())
	})
	t.Run("it kept the error to itself", func(t *testing.T) {
		r := receiver(t, storeFunc(func(ctx context.Context, _ idempotent.Run, body func(context.Context) error) (bool,
			error) {
			_ = body(ctx)
			return false, nil
		}))
		h := handle(t, r, "billing", func(context.Context, message) error { return errHandler })
		require.Equal(t, errHandler, h(t.Context(), withID("m1")))
		require.Equal(t, idempotent.Counts{Failed: 1}, r.Counts())
	})
	t.Run("it kept the panic to itself", func(t *testing.T) {
		r := receiver(t, storeFunc(func(ctx context.Context, _ idempotent.Run, body func(context.Context) error) (bool,
			error) {
			defer func() { _ = recover() }()
			return false, body(ctx)
		}))
		h := handle(t, r, "billing", func(context.Context, message) error { panic("boom") })
		require.ErrorContains(t, h(t.Context(), withID("m1")), "has not returned")
		require.Equal(t, idempotent.Counts{Failed: 1}, r.Counts())
	})
	t.Run("a second call counts, not the first", func(t *testing.T) { // like a transaction that is retried
		r := receiver(t, storeFunc(func(ctx context.Context, _ idempotent.Run, body func(context.Context) error) (bool,
			error) {
			_ = body(ctx)
			return false, body(ctx)
		}))
		calls := 0
		h := handle(t, r, "billing", func(context.Context, message) error {
			if calls++; calls == 1 {
				return errHandler
			}
			return nil
		})
		require.NoError(t, h(t.Context(), withID("m1")))
		require.Equal(t, idempotent.Counts{Processed: 1}, r.Counts())
	})
}

func TestStoreGetsKeyTypeAndRetention(t *testing.T) {
	var runs []idempotent.Run
	r := receiver(t, storeFunc(func(ctx context.Context, run idempotent.Run, body func(context.Context) error) (bool,
		error) {
		runs = append(runs, run)
		return false, body(ctx)
	}), idempotent.Configure(func(o *idempotent.Options) { o.Retention = time.Hour }))
	for _, h := range []func(context.Context, message) error{
		handle(t, r, "billing", nothing[message]),
		handle(t, r, "mail", nothing[message], idempotent.Configure(func(o *idempotent.Options) {
			o.Retention = 48 * time.Hour
		})),
	} {
		require.NoError(t, h(t.Context(), withID("m1")))
	}
	long := withID("m2")
	long.Type = strings.Repeat("é", 300) + "\x00"
	require.NoError(t, handle(t, r, "long", nothing[message])(t.Context(), long))
	long.Type = "a\x00b\xffc"
	require.NoError(t, handle(t, r, "bad", nothing[message])(t.Context(), long))
	run := func(id, key, typ string, retention time.Duration) idempotent.Run {
		return idempotent.Run{Key: idempotent.Key{MessageID: id, HandlerKey: key}, MessageType: typ, Retention: retention}
	}
	require.Equal(t, []idempotent.Run{
		run("m1", "billing", "order.placed", time.Hour), run("m1", "mail", "order.placed", 48*time.Hour),
		run("m2", "long", strings.Repeat("é", 255), time.Hour), run("m2", "bad", "a\ufffdb\ufffdc", time.Hour),
	}, runs)
	last := time.Duration(-1)
	h, err := idempotent.Wrap(storeFunc(func(_ context.Context, run idempotent.Run, _ func(context.Context) error) (bool,
		error) {
		last = run.Retention
		return true, nil
	}), "h", nothing[message])
	require.NoError(t, err)
	require.NoError(t, h(t.Context(), withID("m1")))
	require.Zero(t, last, "the default, which is the store's")
}

func TestHandlerGetsTheStoresContext(t *testing.T) {
	type key struct{}
	r := receiver(t, storeFunc(func(ctx context.Context, _ idempotent.Run, body func(context.Context) error) (bool,
		error) {
		return false, body(context.WithValue(ctx, key{}, "the store's"))
	}))
	var value any
	h := handle(t, r, "billing", func(ctx context.Context, _ message) error { value = ctx.Value(key{}); return nil })
	require.NoError(t, h(t.Context(), withID("m1")))
	require.Equal(t, "the store's", value)
}

func TestWithoutStoreTheHandlerRunsEachTime(t *testing.T) {
	log, logs := observe()
	r, calls := receiver(t, nil, log), 0
	h := handle(t, r, "billing", func(context.Context, message) error {
		if calls++; calls == 4 {
			return errHandler
		}
		return nil
	})
	require.Equal(t, 1, logs.FilterMessageSnippet("no store").Len(), "said at construction")
	for _, id := range []string{"m1", "m1", ""} {
		require.NoError(t, h(t.Context(), withID(id)))
	}
	require.Equal(t, errHandler, h(t.Context(), withID("m1")))
	require.Equal(t, 4, calls)
	require.Equal(t, 1, logs.Len(), "logged once")
	require.Equal(t, idempotent.Counts{Undeduplicated: 3, Failed: 1}, r.Counts())
}

func TestFullMemoryStoreRefusesAndCallsNothing(t *testing.T) {
	r, calls := receiver(t, memory(t, func(o *memstore.Options) { o.MaxKeys = 1 })), 0
	h := handle(t, r, "billing", func(context.Context, message) error { calls++; return nil })
	require.NoError(t, h(t.Context(), withID("m1")))
	require.ErrorIs(t, h(t.Context(), withID("m2")), memstore.ErrFull)
	require.NoError(t, h(t.Context(), withID("m1")), "what is remembered still is")
	require.Equal(t, 1, calls)
	require.Equal(t, idempotent.Counts{Processed: 1, DuplicateSkipped: 1, StoreFailed: 1}, r.Counts())
}

func TestLoadedHandlerOptionsKeepTheReceiversChannel(t *testing.T) {
	r := receiver(t, memory(t), idempotent.Configure(func(o *idempotent.Options) { o.Channel = "core" }))
	loaded := idempotent.DefaultOptions()
	loaded.Retention = time.Hour
	calls := 0
	count := func(context.Context, message) error { calls++; return nil }
	h := handle(t, r, "transfer", count, idempotent.Configure(nil), idempotent.Configure(func(o *idempotent.Options) {
		*o = loaded
	}))
	require.NoError(t, h(t.Context(), withID("m1")))
	identifier, err := idempotent.Identify[message]("transfer",
		idempotent.Configure(func(o *idempotent.Options) { o.Channel = "core" }),
		idempotent.Configure(func(o *idempotent.Options) { *o = loaded }))
	require.NoError(t, err)
	run, err := identifier.Run(withID("m1"))
	require.NoError(t, err)
	require.Equal(t, "core", run.Key.Namespace)
	require.Equal(t, time.Hour, run.Retention)
	require.Equal(t, 1, calls)
}
