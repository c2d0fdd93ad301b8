package simulation

import (
	"context"
	"encoding/json"
	"slices"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/outgoing"
)

// leaving is the outgoing channel. The handler "ship" publishes a message for each of its own, with its ordering key.
const leaving = "leaving"

// publishing is the key of the handler that publishes them.
const publishing = "publish:" + leaving

// shipped is what "ship" publishes.
type shipped struct{ Message, Lane string }

func shippedID(message string) string { return "shipped " + message }

func (s *process) outgoing() inbox.Option {
	return inbox.Outgoing(leaving, inbox.To(s.publish),
		inbox.Publishes("shipped", func(p shipped) string { return p.Lane }))
}

// ship publishes in the handler's transaction.
func (s *process) ship(ctx context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
	_, err := s.inbox.PublishTx(ctx, tx, inbox.Event{ID: shippedID(m.ID),
		Payload: shipped{Message: m.ID, Lane: string(m.OrderingKey)}})
	return err
}

// publish is the destination. It returns soon after its context ends, as it must, and does not panic: both would lose
// the results of other messages. A result counts when the call returns.
func (s *process) publish(ctx context.Context, messages []outgoing.Message) []error {
	results, failed := make([]error, len(messages)), map[string]bool{}
	for i, m := range messages {
		if failed[string(m.Key)] {
			results[i] = outgoing.ErrNotTried
			continue
		}
		run := s.w.begin(s, publishing, m.ID)
		switch run.does {
		case panics:
			run.does = fail
		case ignore:
			run.does = hang
		}
		s.w.note("%s: %s %s, attempt %d: %s", s.name, publishing, m.ID, m.Attempt, run.does)
		results[i] = s.attempt(ctx, run)
		if results[i] == nil {
			results[i] = s.w.arrive(m)
		}
		failed[string(m.Key)] = len(m.Key) > 0 && results[i] != nil
		defer func() { _ = run.end(results[i]) }()
	}
	return results
}

// arrive notes what has arrived, and judges that it had been committed.
func (w *world) arrive(m outgoing.Message) error {
	var what shipped
	if err := json.Unmarshal(m.Content, &what); err != nil {
		return err
	}
	if w.rows(`FROM effects WHERE handler = 'ship' AND message = ?`, what.Message) == 0 {
		w.breaks("%s was published, but is not committed", m.ID)
	}
	if m.ID != shippedID(what.Message) || what.Lane != string(m.Key) {
		w.breaks("%s was published as %+v", m.ID, what)
	}
	w.count("messages", "published")
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	if slices.Contains(w.ledger.arrived, what) {
		return nil // it is known by its ID
	}
	w.ledger.arrived = append(w.ledger.arrived, what)
	return nil
}

// judgeArrivals checks that what was committed has arrived, and each lane's in the order of its effects.
func (w *world) judgeArrivals() {
	var committed []string
	w.query(&committed, `SELECT message FROM effects WHERE handler = 'ship' ORDER BY run`)
	committed = slices.DeleteFunc(committed, func(id string) bool {
		return w.ledger.isDiscarded(publishing, shippedID(id))
	})
	w.ledger.mu.Lock()
	arrived := slices.Clone(w.ledger.arrived)
	w.ledger.mu.Unlock()
	for _, lane := range append([]string{""}, lanes...) {
		var got []string
		for _, a := range arrived {
			if a.Lane == lane && slices.Contains(committed, a.Message) {
				got = append(got, a.Message)
			}
		}
		want := slices.DeleteFunc(slices.Clone(committed), func(id string) bool { return w.laneOf(id) != lane })
		if lane == "" { // no order
			slices.Sort(got)
			slices.Sort(want)
		}
		if !slices.Equal(got, want) {
			w.breaks("of lane %q arrived %v, not %v", lane, got, want)
		}
	}
}

// laneOf returns the ordering key of a message of the topic orders.
func (w *world) laneOf(id string) string {
	i := slices.IndexFunc(w.plan.Messages, func(m Message) bool { return m.Topic == orders && m.ID == id })
	if i < 0 {
		return "" // the application's own
	}
	return w.plan.Messages[i].Lane
}
