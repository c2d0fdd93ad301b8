package processor_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
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
	p := &program{channel: channel, ran: map[string]int{}}
	p.Inbox = inboxtest.New(t, d.Another(t), append([]inbox.Option{inbox.Channel(channel, inbox.On("t",
		inboxtest.Do("h", func(_ context.Context, m inboxtest.Bytes) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.ran[m.ID]++
			return nil
		})))}, opts...)...)
	return p
}

func (p *program) accept(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		m := inboxtest.Message(id)
		m.Channel = p.channel
		_, err := p.Accept(t.Context(), m)
		require.NoError(t, err)
	}
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
func TestMessageRunsInTheProgramThatDeclaresItsHandlerOnItsChannel(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
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
func TestMovedHandlerTakesItsOpenStatusesAlongOnceNoProgramListsItThere(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
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
func TestWorkersWithOneHandlerKeyOnTwoChannelsRunTheirOwnMessages(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		orders := newProgram(t, d, "orders", inboxtest.Brisk())
		returns := newProgram(t, d, "returns", inboxtest.Brisk(), log)
		inboxtest.Start(t, orders.Inbox)
		inboxtest.Start(t, returns.Inbox)
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
func TestDrainEndsAlthoughItFindsAnotherProgramsMessagesAgain(t *testing.T) {
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
