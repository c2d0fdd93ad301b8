package simulation

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Plan is what happens in a run: who runs, what is produced, and what goes wrong. It follows from its seed. Times count
// from the start of the run.
type Plan struct {
	Seed      uint64
	Processes int // that work in the background. One more only accepts, and drains by hand
	Messages  []Message
	Events    []Event
}

// Message is a record of a topic. One ID may have several, which are duplicates.
type Message struct {
	At        time.Duration
	Topic     string
	Partition int
	ID        string
	Lane      string // the ordering key
}

// Event is one thing that happens.
type Event struct {
	At      time.Duration
	Kind    Kind
	Process int
	// For is how long it lasts.
	For time.Duration
	// Rate is how many of a hundred calls are concerned.
	Rate int
}

// Kind is what happens.
type Kind string

const (
	Stop     Kind = "stop"     // gracefully, and start again
	Kill     Kind = "kill"     // and start again
	Down     Kind = "down"     // all processes, for longer than the retention, and another program cleans meanwhile
	Deploy   Kind = "deploy"   // stop, and start the other version, in which handlers have other keys; mostly one process after the other
	Stall    Kind = "stall"    // nothing that the process sends goes on
	Failures Kind = "failures" // calls of the database are delayed, fail, or lose their answers
	Mute     Kind = "mute"     // the answer of the database to the process's next claim is lost, and it stops at once
	Fade     Kind = "fade"     // the process's heartbeats fail, and perhaps what stores results, and nothing else
	Withhold Kind = "withhold" // what stores the results of its handlers fails, and nothing else
	Silence  Kind = "silence"  // calls of the database disappear, and the server does not notice
	Amnesia  Kind = "amnesia"  // calls of the cache with markers do so
	Refuse   Kind = "refuse"   // the process's commits of offsets fail
	Unrest   Kind = "unrest"   // requests to brokers are delayed, fail, or lose their answers
	Evict    Kind = "evict"    // the group loses a member
	Lead     Kind = "lead"     // partitions get other leaders, and the group another coordinator
	Expire   Kind = "expire"   // retention deletes records, read or not
	Recreate Kind = "recreate" // a topic of which all is committed is deleted and created again
	Jump     Kind = "jump"     // the database's clock goes ahead
	Pause    Kind = "pause"    // an operator pauses a handler, and resumes it
	Retry    Kind = "retry"    // an operator retries what is poisoned
	Reject   Kind = "reject"   // an operator has rejected records handled again
	Discard  Kind = "discard"  // an operator discards open statuses
	Release  Kind = "release"  // an operator resumes halted partitions, or skips the records that have halted them
	Backfill Kind = "backfill" // an operator gives a handler of the newer version what is stored
	Clean    Kind = "clean"    // another program, without consumers, cleans
	Accept   Kind = "accept"   // the application accepts a message itself
	Drain    Kind = "drain"    // the application runs what is due itself
)

// kinds are all of them, with their shares.
var kinds = []struct {
	kind  Kind
	share int
}{
	{Stop, 4}, {Kill, 6}, {Down, 4}, {Deploy, 4}, {Stall, 6}, {Failures, 8}, {Mute, 8}, {Fade, 8}, {Withhold, 6},
	{Silence, 3}, {Amnesia, 4}, {Unrest, 5}, {Refuse, 3}, {Evict, 2}, {Lead, 2}, {Expire, 6}, {Recreate, 3}, {Jump, 1},
	{Pause, 2}, {Retry, 3}, {Reject, 3}, {Discard, 6}, {Release, 4}, {Backfill, 3}, {Clean, 5}, {Accept, 4}, {Drain, 4},
}

// abrupt are those after which an attempt can be lost, and a handler run once more than it must.
var abrupt = []Kind{Kill, Down, Stall, Failures, Mute, Fade, Withhold, Silence}

// crowded are those that mostly happen in a burst of messages: while there is most to be left behind, or discarded.
var crowded = []Kind{Stop, Kill, Deploy, Stall, Mute, Fade, Withhold, Silence, Down, Discard}

// has reports whether one of these happens.
func (p *Plan) has(kinds ...Kind) bool {
	return slices.ContainsFunc(p.Events, func(e Event) bool { return slices.Contains(kinds, e.Kind) })
}

// span is for how long things go wrong.
const span = 8 * time.Minute

const partitions = 2

// Topics, and with them channels, one of each mode.
const (
	orders   = "orders"   // Inbox
	payments = "payments" // Inline
	hints    = "hints"    // Direct
)

var topics = []string{orders, payments, hints}

// handlers are those of each topic.
var handlers = map[string][]string{orders: {"book", "mail", "ship", added}, payments: {"charge", "score", "greet"},
	hints: {"hint"}}

var lanes = []string{"red", "blue"}

// mails is how many calls of the handler "mail" run at once in all processes.
const mails = 3

// added is the handler that only the newer version has.
const added = "tally"

// transactional are those whose effects are in the database.
var transactional = []string{"book", "ship", added, "charge"}

// continues reports whether a topic's partitions continue after a gap, before which they halt otherwise.
func (p *Plan) continues(topic string) bool { return p.chance(2, "continues", topic) == 0 }

// halts reports whether a topic's partitions halt at a bad record, which are kept as rejected otherwise.
func (p *Plan) halts(topic string) bool { return p.chance(3, "halts", topic) == 0 }

// keeps reports whether messages are kept for the whole run, once the added handler has them.
func (p *Plan) keeps() bool { return p.chance(2, "keeps") == 0 }

// kept is the added handler's option to keep its messages.
func (p *Plan) kept() []handler.Option {
	if !p.keeps() {
		return nil
	}
	return []handler.Option{handler.Retention(24 * time.Hour)}
}

// NewPlan makes the plan of a seed. Only about half of the kinds happen in it, and it has few or many duplicates: what
// needs several events of one kind is then found sooner than among events of all kinds.
func NewPlan(seed uint64) Plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := Plan{Seed: seed, Processes: 2 + r.IntN(3)}
	var bursts []time.Duration
	for range 3 + r.IntN(6) {
		bursts = append(bursts, between(r, 0, span))
	}
	// near is mostly a moment around a burst, when there is something to go wrong.
	near := func(before, after time.Duration) time.Duration {
		if r.IntN(3) == 0 {
			return between(r, 0, span)
		}
		return max(0, bursts[r.IntN(len(bursts))]+between(r, -before, after))
	}
	for i := range 30 + r.IntN(120) {
		m := Message{At: near(0, 2*time.Second), Topic: []string{orders, orders, payments, payments, hints}[r.IntN(5)],
			Partition: r.IntN(partitions), ID: fmt.Sprintf("m%02d", i)}
		if m.Topic == orders && r.IntN(2) == 0 {
			m.Lane = lanes[r.IntN(2)]
			m.Partition = len(m.Lane) % partitions // those of a lane come in their order
		}
		p.Messages = append(p.Messages, m)
	}
	slices.SortFunc(p.Messages, func(a, b Message) int { return int(a.At - b.At) })
	duplicates, late := []int{10, 30, 70}[r.IntN(3)], []time.Duration{10 * time.Second, time.Minute}[r.IntN(2)]
	for _, m := range p.Messages {
		if m.Lane == "" && r.IntN(100) < duplicates { // again, later, and perhaps in another partition
			m.At, m.Partition = m.At+between(r, 0, late), r.IntN(partitions)
			p.Messages = append(p.Messages, m)
		}
	}
	slices.SortStableFunc(p.Messages, func(a, b Message) int { return int(a.At - b.At) })
	kinds, shares := slices.Clone(kinds), 0
	for i := range kinds {
		if r.IntN(2) == 0 {
			kinds[i].share = 0
		}
		shares += kinds[i].share
	}
	for n := 3 + r.IntN(25); n > 0 && shares > 0; n-- {
		e := Event{At: near(2*time.Second, 20*time.Second), Process: r.IntN(p.Processes + 1),
			For: between(r, time.Second, 2*time.Minute), Rate: 1 + r.IntN(30)}
		share := r.IntN(shares)
		for _, k := range kinds {
			if share -= k.share; share < 0 {
				e.Kind = k.kind
				break
			}
		}
		if r.IntN(4) > 0 && slices.Contains(crowded, e.Kind) {
			e.At = bursts[r.IntN(len(bursts))] + between(r, 0, 4*time.Second)
			switch e.Kind {
			case Mute, Fade, Withhold:
				e.At, e.Process = max(0, e.At-3*time.Second), e.Process%p.Processes // before most handlers have run there
			case Down:
				e.At += 4 * time.Second
			}
			if e.Kind == Stall || e.Kind == Fade { // it ends when others have just taken over
				e.For = recovery + between(r, -5*time.Second, 20*time.Second)
			}
		}
		p.Events = append(p.Events, e)
		p.Events = append(p.Events, before(r, e, p.Processes)...)
	}
	slices.SortStableFunc(p.Events, func(a, b Event) int { return int(a.At - b.At) })
	return p
}

// before returns what goes wrong just before a process ends, mostly: its commits of offsets, so that something is left
// to others. Before all processes go down, none of them can commit.
func before(r *rand.Rand, e Event, processes int) (events []Event) {
	const unread = 25 * time.Second
	refuse := Event{At: max(0, e.At-unread), Kind: Refuse, Process: e.Process, For: unread + between(r, 0, unread)}
	switch {
	case e.Kind == Down:
		for refuse.Process = range processes {
			events = append(events, refuse)
		}
	case r.IntN(2) == 0 && (e.Kind == Stop || e.Kind == Deploy || e.Kind == Kill):
		return []Event{refuse}
	}
	return events
}

func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return (from + time.Duration(r.Int64N(int64(to-from)))).Truncate(time.Millisecond)
}

// chance returns a number below n that follows from the seed and what it is for, whatever else happened before.
func (p *Plan) chance(n int, about ...any) int {
	h := fnv.New64a()
	fmt.Fprint(h, about...)
	return rand.New(rand.NewPCG(p.Seed, h.Sum64())).IntN(n)
}

// outcome is what an attempt of a handler does.
type outcome string

const (
	succeed outcome = "succeeds"
	fail    outcome = "fails"
	panics  outcome = "panics"
	slow    outcome = "is slow"
	hang    outcome = "hangs until its context ends"
	ignore  outcome = "ignores its context"
)

// outcome returns what the n-th attempt of a handler for a message does. Repeated attempts are slow more often: what
// comes late of those before meets them.
func (p *Plan) outcome(handler, message string, n int) outcome {
	switch c := p.chance(100, "outcome", handler, message, n); {
	case n > 1 && c < 40:
		return slow
	case c < 66:
		return succeed
	case c < 82:
		return fail
	case c < 85:
		return panics
	case c < 94:
		return slow
	case c < 97:
		return hang
	}
	return ignore
}
