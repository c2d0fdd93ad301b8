package processor_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/processor"
)

// program is one of two programs of an inbox that declare handler "h" on different channels.
type program struct {
	*inbox.Inbox
	channel string

	mu  sync.Mutex
	ran map[string]int
}

func newProgram(t *testing.T, d *inboxtest.Database, channel string, opts ...inbox.Option) *program {
	t.Helper()
	return newProgramWith(t, d, channel, nil, opts...)
}

func newProgramWith(
	t *testing.T, d *inboxtest.Database, channel string, of []handler.Option, opts ...inbox.Option,
) *program {
	t.Helper()
	p := &program{channel: channel, ran: map[string]int{}}
	p.Inbox = inboxtest.New(t, d.Another(t), append([]inbox.Option{inbox.Channel(channel, inbox.On("t",
		inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.ran[m.ID]++
			return nil
		}, of...)))}, opts...)...)
	return p
}

func (p *program) accept(t *testing.T, ids ...string) {
	t.Helper()
	messages := make([]handler.RawMessage, len(ids))
	for i, id := range ids {
		messages[i] = inboxtest.Message(id)
		messages[i].Channel = p.channel
	}
	_, err := p.Accept(t.Context(), messages...)
	require.NoError(t, err)
}

func (p *program) all() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	ran := map[string]int{}
	for id, n := range p.ran {
		ran[id] = n
	}
	return ran
}

// Contract 2, 4.4.
func TestMessageRunsInTheProgramOfItsHandlerAndChannel(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		orders, returns := newProgram(t, d, "orders"), newProgram(t, d, "returns")
		inboxtest.Process(t, orders.Inbox)
		inboxtest.Process(t, returns.Inbox)
		orders.accept(t, "o1", "o2")
		returns.accept(t, "r1")
		drained := inboxtest.Process(t, returns.Inbox)
		require.Equal(t, processor.Drained{Picked: 1 + drained.Released, Completed: 1, Released: drained.Released}, drained)
		require.Zero(t, inboxtest.Status(t, orders.Inbox, "o1", "h").ErrorCount)
		require.Equal(t, processor.Drained{Picked: 2, Completed: 2}, inboxtest.Process(t, orders.Inbox))
		require.Equal(t, map[string]int{"o1": 1, "o2": 1}, orders.all())
		require.Equal(t, map[string]int{"r1": 1}, returns.all())
	})
}

// Contract 4.4.
func TestMovedHandlerKeepsItsOpenStatuses(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		before := newProgram(t, d, "orders")
		inboxtest.Process(t, before.Inbox)
		before.accept(t, "o1")
		drainedAt(t, d, 9*24)
		after := newProgram(t, d, "returns")
		require.Equal(t, processor.Drained{Picked: 1, Completed: 1}, inboxtest.Process(t, after.Inbox))
		require.Equal(t, map[string]int{"o1": 1}, after.all())
	})
}

// Contract 2, 4.4: two workers each run their own, find each other's, and say so once.
func TestWorkersSharingAHandlerKeyRunOnlyTheirChannel(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		orders := newProgram(t, d, "orders", inboxtest.Brisk())
		returns := newProgram(t, d, "returns", inboxtest.Brisk(), log)
		inboxtest.Start(t, orders.Inbox)
		inboxtest.Start(t, returns.Inbox)
		// Before a program's row is there, the other one takes the handler for moved.
		inboxtest.Eventually(t, func() bool {
			var rows int
			require.NoError(t, d.DB.Raw("SELECT count(*) FROM inbox_workers").Scan(&rows).Error)
			return rows == 2
		}, "both have their rows")
		want := map[*program]map[string]int{orders: {}, returns: {}}
		for i := range 50 {
			for _, p := range []*program{orders, returns} {
				id := fmt.Sprintf("%s-%d", p.channel, i)
				p.accept(t, id)
				want[p][id] = 1
			}
		}
		inboxtest.Eventually(t, func() bool { return inboxtest.AllCompleted(t, orders.Inbox) }, "all have run")
		require.Equal(t, want[orders], orders.all())
		require.Equal(t, want[returns], returns.all())
		said := func() int {
			return logs.FilterMessageSnippet("declares a handler key on another channel").FilterField(zap.String("handler_key", "h")).Len()
		}
		inboxtest.Eventually(t, func() bool { return said() > 0 }, "it is said")
		require.Equal(t, 1, said())
	})
}

// Contract 5.14: what is left to another program does not keep a drain going beside a message that is due again at
// once.
func TestDrainEndsDespiteMessagesOfAnotherProgram(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		orders := newProgram(t, d, "orders")
		inboxtest.Process(t, orders.Inbox)
		orders.accept(t, "o1")
		const enough = 20
		ran := 0
		returns := inboxtest.New(t, d.Another(t), inbox.Channel("returns", inbox.On("t",
			inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error {
				if ran++; ran == enough {
					return nil
				}
				return handler.Snooze(0)
			}))))
		m := inboxtest.Message("r1")
		m.Channel = "returns"
		_, err := returns.Accept(t.Context(), m)
		require.NoError(t, err)
		inboxtest.Process(t, returns)
		require.Less(t, ran, enough)
		inboxtest.Process(t, orders.Inbox)
		require.Equal(t, map[string]int{"o1": 1}, orders.all())
	})
}

// byID gives each message a lane of its own.
var byID = handler.OrderedBy(func(m handler.RawMessage) []byte { return []byte(m.ID) })

// writes returns how often the statuses of other messages than these were written.
func writes(t *testing.T, d *inboxtest.Database, own ...string) (n int) {
	t.Helper()
	require.NoError(t, d.DB.Raw("SELECT sum(version) FROM inbox_handler_statuses WHERE message_id NOT IN ?", own).Scan(&n).Error)
	return n
}

// Contract 4.4: however many statuses of another program are due before ours, ours run, and theirs are
// not written again and again.
func TestStatusesOfAnotherProgramDelayNoOthers(t *testing.T) {
	for kind, of := range map[string][]handler.Option{"plain": nil, "ordered": {byID}} {
		for _, mode := range []processor.Mode{processor.ModeCompeting, processor.ModeExclusive} {
			t.Run(fmt.Sprint(kind, " ", mode), func(t *testing.T) {
				inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
					options := []inbox.Option{inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
						o.Processor.Mode = mode
						o.Processor.PollingInterval = time.Second
					})}
					orders := newProgramWith(t, d, "orders", of, options...)
					inboxtest.Process(t, orders.Inbox)
					returns := newProgramWith(t, d, "returns", of, options...)
					theirs := many(store.WindowRows + 100)
					orders.accept(t, theirs...)
					own, want := []string{"r1", "r2"}, map[string]int{"r1": 1, "r2": 1}
					returns.accept(t, own...)
					drained := inboxtest.Process(t, returns.Inbox)
					require.Equal(t, 2, drained.Completed)
					require.Equal(t, want, returns.all())
					written := writes(t, d, own...)
					require.LessOrEqual(t, written-len(theirs), 2*drained.Released)

					inboxtest.Start(t, returns.Inbox)
					for i := range 5 {
						id := fmt.Sprint("w", i)
						returns.accept(t, id)
						own, want[id] = append(own, id), 1
						inboxtest.Eventually(t, func() bool { return returns.all()[id] == 1 }, "it has run")
					}
					require.Equal(t, processor.Drained{}, inboxtest.Process(t, returns.Inbox))
					require.Equal(t, written, writes(t, d, own...), "no status of the other program is written again")
					require.Equal(t, want, returns.all())
				})
			})
		}
	}
}

// Contract 4.4, 5.12: the lane is that of the handler, whichever program runs its next message.
func TestLaneOfTwoProgramsRunsInOrder(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		one := []handler.Option{handler.OrderedBy(func(handler.RawMessage) []byte { return []byte("one") })}
		orders, returns := newProgramWith(t, d, "orders", one), newProgramWith(t, d, "returns", one)
		inboxtest.Process(t, orders.Inbox)
		inboxtest.Process(t, returns.Inbox)
		orders.accept(t, "o1")
		returns.accept(t, "r1")
		orders.accept(t, "o2")
		for range 2 {
			require.Zero(t, inboxtest.Process(t, returns.Inbox).Completed)
		}
		require.Equal(t, 1, inboxtest.Process(t, orders.Inbox).Completed)
		require.Equal(t, 1, inboxtest.Process(t, returns.Inbox).Completed)
		require.Equal(t, 1, inboxtest.Process(t, orders.Inbox).Completed)
	})
}
