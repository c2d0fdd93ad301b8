package kafka

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// inlined selects Inline with its defaults.
var inlined = []inbox.InlineOption{}

// onInline runs a test of an Inline channel on each database, with a table of effects without a
// unique key.
func onInline(t *testing.T, partitions int, test func(t *testing.T, r *directRig)) {
	t.Helper()
	onDirect(t, partitions, func(t *testing.T, r *directRig) {
		inboxtest.Exec(t, r.database.DB, "CREATE TABLE effects (handler_key varchar(200), message_id varchar(200))")
		r.ledger.sparse = true // this test checks the table instead
		test(t, r)
	})
}

func effect(db *gorm.DB, m inboxtest.Bytes) error {
	return db.Exec("INSERT INTO effects (handler_key, message_id) VALUES (?, ?)", m.HandlerKey, m.ID).Error
}

// tx declares a transactional handler that writes its effect and then calls do.
func (r *directRig) tx(
	key string, do func(ctx context.Context, m inboxtest.Bytes) error, opts ...handler.Option,
) *inbox.HandlerSpec {
	return inbox.Tx(key, func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
		at := r.enter(key, m)
		defer r.leave(at)
		if err := effect(tx, m); err != nil {
			return err
		}
		return do(ctx, m)
	}, opts...)
}

// plain declares a plain handler that does the same with the session from its context.
func (r *directRig) plain(key string, do func(ctx context.Context, m inboxtest.Bytes) error) *inbox.HandlerSpec {
	return r.handler(key, func(ctx context.Context, m inboxtest.Bytes) error {
		if err := effect(handler.DB(ctx), m); err != nil {
			return err
		}
		return do(ctx, m)
	})
}

// effects counts the effects by handler key and message ID.
func (r *directRig) effects(t *testing.T) map[string]int {
	t.Helper()
	var rows []struct{ HandlerKey, MessageID string }
	require.NoError(t, r.database.DB.Table("effects").Find(&rows).Error)
	counts := map[string]int{}
	for _, row := range rows {
		counts[row.HandlerKey+" "+row.MessageID]++
	}
	return counts
}

func (r *directRig) markers(t *testing.T) []string {
	t.Helper()
	var rows []models.Marker
	require.NoError(t, r.database.DB.Table("inbox_markers").Order("handler_key, message_id").Find(&rows).Error)
	keys := []string{}
	for _, row := range rows {
		keys = append(keys, row.HandlerKey+" "+row.MessageID)
	}
	return keys
}

func oneEach(keys ...string) map[string]int {
	counts := map[string]int{}
	for _, key := range keys {
		counts[key] = 1
	}
	return counts
}

// TestInlineDuplicatesAcrossPartitionsTakeEffectOnce proves contract 2, 8.2 and 8.3:
// however a message is delivered again, each handler has its effect once.
func TestInlineDuplicatesAcrossPartitionsTakeEffectOnce(t *testing.T) {
	onInline(t, 4, func(t *testing.T, r *directRig) {
		const messages = 15
		var want []string
		for i := range messages {
			id := fmt.Sprintf("m%02d", i)
			for p := range 4 {
				r.send(t, p, id, id)
			}
			want = append(want, "plain "+id, "tx "+id)
		}
		fail := func(_ context.Context, m inboxtest.Bytes) error {
			if m.Attempt == 1 && m.Properties.Kafka.Offset%6 == 0 {
				return errBoom
			}
			return nil
		}
		handlers := []*inbox.HandlerSpec{r.plain("plain", fail), r.tx("tx", fail)}
		one, _ := r.run(t, settings{inline: inlined}, handlers...)
		other, _ := r.run(t, settings{inline: inlined}, handlers...)
		r.awaitCommitted(t)
		require.Equal(t, oneEach(want...), r.effects(t))
		require.ElementsMatch(t, want, r.markers(t))
		a, b := one.Counters(), other.Counters()
		require.EqualValues(t, 2*messages, a.Processed+b.Processed)
		require.GreaterOrEqual(t, a.DuplicateSkipped+b.DuplicateSkipped, int64(2*messages*7),
			"more if a rebalance redelivered")
		require.Zero(t, a.Poisoned+b.Poisoned)
		require.Empty(t, r.rejected(t, one))
		require.Zero(t, inboxtest.CountMessages(t, one), "nothing is stored but markers")
	})
}

// TestInlineDuplicateInFlightWaitsForTheFirst proves contract 8.2: when a message is delivered
// twice at the same time, the second delivery waits for the result of the first.
func TestInlineDuplicateInFlightWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]bool{"which succeeds": false, "which fails": true} {
		t.Run(name, func(t *testing.T) {
			onInline(t, 2, func(t *testing.T, r *directRig) {
				r.send(t, 0, "same")
				entered, open := make(chan int, 10), make(chan struct{})
				ib, _ := r.run(t, settings{inline: inlined, options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
					o.Processor.MaxRetries = 1
				})}},
					r.tx("h", func(_ context.Context, m inboxtest.Bytes) error {
						entered <- m.Properties.Kafka.Partition
						<-open
						if fails && m.Properties.Kafka.Partition == 0 {
							return errBoom
						}
						return nil
					}))
				require.Zero(t, receive(t, entered))
				r.send(t, 1, "same")
				require.Never(t, func() bool {
					return len(entered) > 0 || r.committed(1) > 0
				}, 500*time.Millisecond, 20*time.Millisecond)
				close(open)
				r.awaitCommitted(t)
				require.Equal(t, oneEach("h same"), r.effects(t))
				counted := ib.Counters()
				if fails {
					require.Equal(t, 1, receive(t, entered), "the second ran")
					require.Len(t, r.rejected(t, ib), 1)
					require.EqualValues(t, []int64{1, 1, 0}, []int64{counted.Processed, counted.Poisoned, counted.DuplicateSkipped})
				} else {
					require.EqualValues(t, []int64{1, 0, 1}, []int64{counted.Processed, counted.Poisoned, counted.DuplicateSkipped})
				}
				require.Empty(t, entered)
			})
		})
	}
}

// TestInlineRedeliveryAfterALostOffsetCommitIsSkipped proves contract 7.6 and 8.2: a crash between
// the handlers' commit and the offset's commit delivers the records again, without effect. A
// renamed handler recognizes what it did under its old key, and the program from before the rename
// what it did under the new one.
func TestInlineRedeliveryAfterALostOffsetCommitIsSkipped(t *testing.T) {
	t.Parallel()
	memory, err := memstore.New()
	require.NoError(t, err)
	for name, options := range map[string][]inbox.InlineOption{"own tables": inlined,
		"another store": {inbox.InlineStore(memory)}} {
		for again, keys := range map[string][2]string{"the same": {"h", "h"}, "renamed": {"h", "new"},
			"the program before the rename": {"new", "h"}} {
			t.Run(name+", "+again, func(t *testing.T) {
				onInline(t, 1, func(t *testing.T, r *directRig) {
					ids := []string{t.Name() + " a", t.Name() + " b"}
					r.send(t, 0, ids...)
					lost := r.kafka.FailNext(kmsg.OffsetCommit, illegalGeneration, -1)
					nothing := func(context.Context, inboxtest.Bytes) error { return nil }
					program := func(key string) *inbox.HandlerSpec {
						if key == "new" {
							return r.tx(key, nothing, handler.LegacyKeys("h"))
						}
						return r.tx(key, nothing)
					}
					first, end := r.run(t, settings{inline: options}, program(keys[0]))
					eventually(t, "both are done", func() bool { return first.Counters().Processed == 2 })
					end()
					lost.Remove()
					require.Zero(t, r.committed(0), "its commits were lost")

					second, _ := r.run(t, settings{inline: options}, program(keys[1]))
					r.awaitCommitted(t)
					require.Equal(t, oneEach(keys[0]+" "+ids[0], keys[0]+" "+ids[1]), r.effects(t))
					require.EqualValues(t, []int64{0, 2}, []int64{second.Counters().Processed, second.Counters().DuplicateSkipped})
				})
			})
		}
	}
}

// TestInlineHandlersOfAMessageAreIndependent proves contract 8.3 and 8.4: one handler's failure
// does not affect another handler, and leaves no marker.
func TestInlineHandlersOfAMessageAreIndependent(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		r.send(t, 0, "m", "behind")
		s := settings{inline: inlined, options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 2
			o.Acceptor.BadRecords = acceptor.BadRecordHalt
		})}}
		fails := true
		good := r.plain("good", inboxtest.Nothing)
		bad := r.tx("bad", func(context.Context, inboxtest.Bytes) error {
			if fails {
				return errBoom
			}
			return nil
		})
		ib, end := r.run(t, s, good, bad)
		eventually(t, "halted", func() bool { return len(ib.Health().Consumers[0].Halted()) == 1 })
		end()
		require.Equal(t, []string{"good m"}, r.markers(t))
		require.Equal(t, []int{1, 2}, r.attempts("bad", 0, 0))
		fails = false
		r.run(t, s, good, bad)
		r.awaitCommitted(t)
		require.Equal(t, []int{1}, r.attempts("good", 0, 0), "it had done its part")
		require.Equal(t, oneEach("good m", "bad m", "good behind", "bad behind"), r.effects(t))
	})
}

// TestGivenUpInlineRecordIsRejectedWithoutMarker proves contract 7.4 and 8.4: a
// message that was given up leaves no marker, so it runs when it is sent again.
func TestGivenUpInlineRecordIsRejectedWithoutMarker(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		r.send(t, 0, "fails", "poisons", "panics", "good")
		fixed := false
		ib, end := r.run(t, settings{inline: inlined, options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 2
		})}},
			r.tx("h", func(_ context.Context, m inboxtest.Bytes) error {
				switch {
				case fixed:
				case m.ID == "fails":
					return errBoom
				case m.ID == "poisons":
					return handler.Poison(errBoom)
				case m.ID == "panics":
					panic("ouch")
				}
				return nil
			}))
		r.awaitCommitted(t)
		require.Equal(t, oneEach("h good"), r.effects(t))
		require.Equal(t, []string{"h good"}, r.markers(t))
		rows := r.rejected(t, ib)
		require.Len(t, rows, 3)
		for i, want := range []string{`handler "h" gave up message "fails" after 2 attempts: boom`,
			`handler "h" gave up message "poisons" after 1 attempts: poison: boom`, "handler panicked: ouch"} {
			require.Contains(t, rows[i].Reason, want)
		}
		end()
		fixed = true
		r.send(t, 0, "fails", "poisons", "panics", "good")
		r.run(t, settings{inline: inlined}, r.tx("h", inboxtest.Nothing))
		r.awaitCommitted(t)
		require.Equal(t, oneEach("h good", "h fails", "h poisons", "h panics"), r.effects(t))
	})
}

// TestInlineDuplicatesFollowTheirPolicy proves contract 8.3.
func TestInlineDuplicatesFollowTheirPolicy(t *testing.T) {
	t.Parallel()
	for policy, rejected := range map[idempotent.DuplicatePolicy]int{idempotent.SkipDuplicates: 0,
		idempotent.LogDuplicates: 0, idempotent.FailDuplicates: 1} {
		t.Run(string(policy), func(t *testing.T) {
			onInline(t, 1, func(t *testing.T, r *directRig) {
				r.send(t, 0, "same", "same")
				observe, logs := inboxtest.Observe()
				ib, _ := r.run(t,
					settings{inline: []inbox.InlineOption{inbox.InlineDefaults(idempotent.Configure(func(o *idempotent.Options) {
						o.Duplicates = policy
					}))},
						options: []inbox.Option{observe}}, r.tx("h", inboxtest.Nothing))
				r.awaitCommitted(t)
				require.Equal(t, oneEach("h same"), r.effects(t))
				require.EqualValues(t, 1, ib.Counters().DuplicateSkipped)
				rows := r.rejected(t, ib)
				require.Len(t, rows, rejected)
				if rejected > 0 {
					require.Contains(t, rows[0].Reason, `handler "h" has processed message "same" before`)
				}
				require.Equal(t, policy == idempotent.LogDuplicates, logs.FilterMessage("inbox: duplicate skipped").Len() == 1)
			})
		})
	}
}

// TestInlineMarkersAreDeletedOnceTheChannelHasCaughtUp proves contract 6.5, 6.6 and 8.4: a message is
// a duplicate while its marker exists. Cleanup deletes expired markers, but not before the channel
// has caught up.
func TestInlineMarkersAreDeletedOnceTheChannelHasCaughtUp(t *testing.T) {
	onInline(t, 1, func(t *testing.T, r *directRig) {
		sweep := settings{inline: inlined, options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.SweepMarkers = true
		})}}
		keep := settings{inline: inlined}
		h := r.tx("h", inboxtest.Nothing, handler.Retention(time.Millisecond))
		r.send(t, 0, "m", "m")
		observe, logs := inboxtest.Observe()
		keep.options = []inbox.Option{observe}
		ib, end := r.run(t, keep, h)
		r.awaitCommitted(t)
		require.Equal(t, oneEach("h m"), r.effects(t), "expired, it is a duplicate")
		require.Equal(t, 1, logs.FilterMessageSnippet("markers of inline channels accumulate").Len())
		deleted, err := ib.Cleanup(t.Context())
		require.NoError(t, err)
		require.Zero(t, deleted.Markers)
		end()

		swept := func(ib *inbox.Inbox) int64 {
			deleted, err := ib.Cleanup(t.Context())
			require.NoError(t, err)
			return deleted.Markers
		}
		ib, end = r.run(t, sweep, h)
		eventually(t, "it has caught up", func() bool { return swept(ib) == 1 })
		r.send(t, 0, "m")
		r.awaitCommitted(t)
		require.Equal(t, map[string]int{"h m": 2}, r.effects(t))
		end()

		r.kafka.Stop()
		ib, end = r.run(t, sweep, h)
		eventually(t, "the outage shows", func() bool { return ib.Health().Consumers[0].GroupErr != nil })
		require.Zero(t, swept(ib), "it expired after what the partition has caught up to")
		end()
	})
}
