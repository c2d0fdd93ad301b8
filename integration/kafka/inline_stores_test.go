package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// faulty is a store that fails until its fault is removed.
type faulty struct {
	*memstore.Store
	fault atomic.Pointer[func(body func() error) error]
	asked atomic.Int32
}

func newFaulty(t *testing.T, fault func(body func() error) error) *faulty {
	t.Helper()
	memory, err := memstore.New()
	require.NoError(t, err)
	f := &faulty{Store: memory}
	f.fault.Store(&fault)
	return f
}

func (f *faulty) Run(ctx context.Context, run idempotent.Run, body func(ctx context.Context) error) (bool, error) {
	f.asked.Add(1)
	if fault := f.fault.Load(); fault != nil {
		return false, (*fault)(func() error { return body(ctx) })
	}
	return f.Store.Run(ctx, run, body)
}

var errDown = errors.New("connection refused")

// TestFailingInlineStoreBlocksItsPartitionUncharged proves contract 7.6, 7.8 and 8.2:
// while a store fails, the record is neither acknowledged nor charged, however long that lasts.
func TestFailingInlineStoreBlocksItsPartitionUncharged(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault  func(body func() error) error
		shows  string // in health
		called bool
		// cancelled is true if the handler fails because of it.
		cancelled bool
	}{
		"it cannot be reached": {func(func() error) error { return errDown }, "connection refused", false, false},
		"it panics":            {func(func() error) error { panic("ouch") }, "panicked: ouch", false, false},
		"it loses the claim": {func(body func() error) error {
			_ = body()
			return idempotent.ErrLost
		}, "claim on the message was lost", true, false},
		"it loses the claim and says so to the handler": {func(body func() error) error {
			return fmt.Errorf("%w; %w", idempotent.ErrLost, body())
		}, "claim on the message was lost", true, true},
		"it calls nothing": {func(func() error) error { return nil }, "called nothing and reported success", false,
			false},
		"it cannot finish": {func(body func() error) error {
			return errors.Join(body(), errDown)
		}, "connection refused", true, false},
		"somebody else is at it": {func(func() error) error {
			return fmt.Errorf("store: %w", idempotent.ErrInProgress)
		}, "", false, false},
		"it is full": {func(func() error) error {
			return memstore.ErrFull
		}, "memory store is full", false, false},
		"it loses its connections": {func(func() error) error {
			return context.DeadlineExceeded
		}, "deadline exceeded", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			onInline(t, 1, func(t *testing.T, r *directRig) {
				r.send(t, 0, "m", "behind")
				store := newFaulty(t, tc.fault)
				observe, logs := inboxtest.Observe()
				ib, _ := r.run(t, settings{inline: []inbox.InlineOption{inbox.InlineStore(store)},
					options: []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 1 }), observe}},
					r.handler("h", func(context.Context, inboxtest.Bytes) error {
						if tc.cancelled && store.fault.Load() != nil {
							return idempotent.ErrLost // the cause of the context's end
						}
						return nil
					}))
				eventually(t, "it was asked again", func() bool { return store.asked.Load() > 3 })
				require.Zero(t, r.committed(0))
				require.Equal(t, tc.called, len(r.of("h")) > 0)
				if tc.shows != "" {
					require.ErrorContains(t, ib.Health().InPlaceOutages["c"], tc.shows)
					require.ErrorContains(t, ib.Health().Degraded(), `channel "c": attempts cannot be made or finished`)
				} else {
					require.Empty(t, ib.Health().InPlaceOutages)
				}
				store.fault.Store(nil)
				r.awaitCommitted(t)
				require.Empty(t, ib.Health().InPlaceOutages)
				require.Empty(t, r.rejected(t, ib))
				counted := ib.Counters()
				require.EqualValues(t, []int64{2, 0, 0}, []int64{counted.Processed, counted.Failed, counted.Poisoned})
				for _, c := range r.of("h") {
					require.Equal(t, 1, c.attempt)
				}
				said := logs.FilterMessageSnippet("database or marker store").Len()
				require.Equal(t, map[bool]int{true: 2, false: 0}[tc.shows != ""], said, "once when it began, once when it was over")
			})
		})
	}
}

// TestInlineHandlerFailureIsChargedEvenIfWrapped checks that a handler's failure is
// charged to it, even if the store wraps the error.
func TestInlineHandlerFailureIsChargedEvenIfWrapped(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		r.send(t, 0, "m")
		store := newFaulty(t, func(body func() error) error { return fmt.Errorf("redis: %w", errors.Join(body(), errDown)) })
		ib, _ := r.run(t, settings{inline: []inbox.InlineOption{inbox.InlineStore(store)},
			options: []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 2 })}},
			r.handler("h", func(context.Context, inboxtest.Bytes) error { return idempotent.ErrInProgress }))
		r.awaitCommitted(t)
		require.Equal(t, []int{1, 2}, r.attempts("h", 0, 0))
		require.Contains(t, r.rejected(t, ib)[0].Reason,
			"gave up message \"m\" after 2 attempts: the message is being handled elsewhere")
	})
}

// TestInlineChannelWithoutStoreLogsThatOnce proves contract 8.5.
func TestInlineChannelWithoutStoreLogsThatOnce(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		memory, err := memstore.New()
		require.NoError(t, err)
		r.send(t, 0, "same", "same")
		observe, logs := inboxtest.Observe()
		ib, _ := r.run(t, settings{inline: []inbox.InlineOption{inbox.InlineStore(nil),
			inbox.InlineHandler("remembers", memory)}, options: []inbox.Option{observe}},
			r.tx("forgets", inboxtest.Nothing), r.tx("remembers", inboxtest.Nothing))
		r.awaitCommitted(t)
		require.Equal(t, map[string]int{"forgets same": 2, "remembers same": 1}, r.effects(t))
		said := logs.FilterMessageSnippet("has no store of processed messages").All()
		require.Len(t, said, 1)
		require.Equal(t, []any{"forgets"}, said[0].ContextMap()["handler_keys"])
		require.EqualValues(t, 1, ib.Counters().DuplicateSkipped)
		require.Empty(t, r.markers(t))
	})
}

// TestInlineMarkersOnTheSamePoolShareTheTransaction proves contract 8.2: markers of
// a store on the same pool share the handler's transaction. Those of a store on another pool do
// not.
func TestInlineMarkersOnTheSamePoolShareTheTransaction(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		require.NoError(t, models.Migrate(t.Context(), r.database.DB, models.Naming{Prefix: "own_"}, ""))
		r.send(t, 0, "m", "m")
		cfg := settings{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.Processor.MaxRetries = 1 })}}
		db := r.database.Another(t)
		store, err := gormstore.New(db, func(o *gormstore.Options) { o.TablePrefix = "own_" })
		require.NoError(t, err)
		cfg.inline = []inbox.InlineOption{inbox.InlineStore(store)}
		ib := r.inboxOn(t, db, cfg, r.tx("h", func(ctx context.Context, _ inboxtest.Bytes) error {
			var markers int64
			if err := handler.DB(ctx).Table("own_markers").Count(&markers).Error; err != nil || markers != 1 {
				return errors.Join(errBoom, err)
			}
			return nil
		}))
		inboxtest.Start(t, ib)
		r.awaitCommitted(t)
		require.Equal(t, oneEach("h m"), r.effects(t))
		require.Empty(t, r.markers(t), "they are in the other table")
		require.Empty(t, r.rejected(t, ib))
	})
}

// TestInlineStoreWithoutItsTableFailsTheStart proves contract 10.4: a missing table fails the
// start, not the first message.
func TestInlineStoreWithoutItsTableFailsTheStart(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		store, err := gormstore.New(r.database.DB, func(o *gormstore.Options) { o.TablePrefix = "own_" })
		require.NoError(t, err)
		ib := r.inbox(t, settings{inline: []inbox.InlineOption{inbox.InlineStore(store)}}, r.tx("h", inboxtest.Nothing))
		err = ib.Start(t.Context())
		require.ErrorIs(t, err, models.ErrSchemaMissing)
		require.ErrorContains(t, err, `channel "c"`)
	})
}
