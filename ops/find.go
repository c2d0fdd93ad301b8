package ops

import (
	"context"
	"slices"
	"strings"
	"unicode"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
)

// filter is a Filter that has been checked.
type filter struct {
	Filter
	// states has a bit for each requested state, see stateBit; all bits if no state is requested.
	states int
	text   string // ErrorText in lower case
	// acting means that the matching statuses are changed while they are read.
	acting bool
}

// stateBit returns a state's bit in a store.StatusScan: its place in States. A failing status has the bits of
// StatePending and of StateFailing.
func stateBit(s State) int { return 1 << slices.Index(States(), s) }

// checked prepares a filter, or returns what is wrong with it.
func (f Filter) checked() (*filter, error) {
	if len(f.States) == 0 && (f.ErrorText != "" || f.Fingerprint != "") {
		f.States = []State{StatePoisoned, StateFailing}
	}
	p := &filter{Filter: f, text: strings.ToLower(f.ErrorText)}
	for _, s := range f.States {
		if !slices.Contains(States(), s) {
			return nil, badInput("state", "%q is none of %s", s, joined(States()))
		}
		p.states |= stateBit(s)
	}
	if len(f.States) == 0 {
		p.states = 1<<len(States()) - 1
	}
	if len(f.HandlerKeys) > maxKeys {
		return nil, badInput("handler keys", "%d are given, at most %d are allowed", len(f.HandlerKeys), maxKeys)
	}
	for _, key := range f.HandlerKeys {
		if err := checkText("handler key", key, 1, columns.MaxHandlerKey); err != nil {
			return nil, err
		}
	}
	if err := checkTexts(argument{"message ID", f.MessageID, 0, columns.MaxMessageID},
		argument{"namespace", f.Namespace, 0, columns.MaxChannel}, argument{"type", f.Type, 0, columns.MaxType},
		argument{"error text", f.ErrorText, 0, columns.MaxLastError},
		argument{"fingerprint", f.Fingerprint, 0, 100}); err != nil {
		return nil, err
	}
	if f.Namespace != "" && f.MessageID == "" {
		return nil, badInput("namespace", "it is given without a message ID")
	}
	return p, checkAges(f.From, f.To)
}

// maxKeys is how many handler keys are read one by one.
const maxKeys = 1000

// asks reports whether one of these states is requested.
func (f *filter) asks(states ...State) bool {
	return slices.ContainsFunc(states, func(s State) bool { return f.states&stateBit(s) != 0 })
}

// comparesMessage reports whether statements must compare the message's columns.
func (f *filter) comparesMessage() bool { return f.Type != "" || !f.From.IsZero() || !f.To.IsZero() }

// takes reports whether a status matches.
func (f *filter) takes(s Status) bool {
	return (f.asks(s.State) || s.Failing && f.asks(StateFailing)) &&
		(len(f.HandlerKeys) == 0 || slices.Contains(f.HandlerKeys, s.HandlerKey)) &&
		(f.Type == "" || s.Type == f.Type) && within(s.ReceivedAt, f.From, f.To) &&
		f.takesText(s.LastError) && (f.Fingerprint == "" || s.Fingerprint == f.Fingerprint)
}

// takesText compares with the text as operators see it: a search must not find text that the redaction hook hides.
func (f *filter) takesText(redacted string) bool {
	return f.text == "" || strings.Contains(strings.ToLower(redacted), f.text)
}

// sqlText returns the text, in lower case, that statements search for in errors, so that a search need not read every
// error. It is empty if statements cannot decide: a hook may show any other text than the stored one, and databases
// differ in the case of letters beyond ASCII.
func (o *access) sqlText(text string) string {
	if o.redacts() || strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) {
		return ""
	}
	return text
}

// judges reports whether find must compare error texts because statements cannot.
func (o statusSearch) judges(f *filter) bool { return f.text != o.sqlText(f.text) }

// poisonedAlone reports whether the filter, apart from its handler keys, matches exactly the poisoned statuses.
func (f *filter) poisonedAlone() bool {
	return f.states == stateBit(StatePoisoned) && f.MessageID == "" && f.Fingerprint == "" && f.text == "" &&
		f.Type == "" && f.From.IsZero() && f.To.IsZero()
}

// stages returns the parts of the list of matching statuses, in order. Statuses that partial indexes hold are found by
// these, all others by age. The index on failures holds poisoned and failing statuses: a retried status keeps its
// fingerprint and is not in it. An action begins with the statuses that wait in lanes: discarding frees the next row of
// a lane, which is then found by its due time.
func (f *filter) stages() []store.Stage {
	switch {
	case f.MessageID != "":
		return []store.Stage{store.StageMessage}
	case f.asks(StateCompleted, StateDiscarded, StateSuperseded):
		return []store.Stage{store.StageReceived}
	case f.Fingerprint != "" && !f.asks(StatePending, StateProcessing):
		return []store.Stage{store.StageGroup}
	}
	var stages []store.Stage
	if f.asks(StatePoisoned) {
		stages = append(stages, store.StagePoisoned)
	}
	waits := f.asks(StatePending, StateFailing) // a failed head may be waiting again
	if waits && f.acting {
		stages = append(stages, store.StageWaiting)
	}
	if f.asks(StatePending, StateProcessing, StateFailing) {
		stages = append(stages, store.StageDue)
	}
	if waits && !f.acting {
		stages = append(stages, store.StageWaiting)
	}
	return stages
}

// found is the result of a search.
type found struct {
	rows []hit
	// next is the place after the last returned row; nil at the end of the list.
	next    *place
	partial bool
	looked  int
}

// find reads matching statuses from a place on, until it has limit rows or has read lookLimit rows. A list without
// conditions takes one statement for each stage. A search with few matches continues after the rows that it has read,
// in larger steps.
func (o statusSearch) find(ctx context.Context, f *filter, after *place, limit int) (found, error) {
	var out found
	stages, first := f.stages(), 0
	if after != nil {
		first = after.Stage
	}
	if first >= len(stages) {
		return out, badInput("cursor", "it is not one of this list")
	}
	for i := first; i < len(stages); i++ {
		ended, err := o.findIn(ctx, f, stages[i], i, after, limit, &out)
		if err != nil || !ended {
			return out, err
		}
		after = nil
	}
	return out, nil
}

// findIn adds the rows of a stage, the number-th. ended means that the stage has no more.
func (o statusSearch) findIn(
	ctx context.Context, f *filter, st store.Stage, number int, after *place, limit int, out *found,
) (ended bool, err error) {
	at := o.start(f, st)
	if after != nil {
		if at = *after; at.ID == "" && st.Keyed() {
			return false, badInput("cursor", "it is not one of this list")
		}
	}
	keys, perStep := distinct(f.HandlerKeys), 1 // rows looked at for each that a step is long
	if st.Keyed() {
		if keys, err = o.keysFor(ctx, f, st); err != nil {
			return false, err
		}
		perStep = len(keys)
	}
	judges := o.judges(f)
	for step := firstStep(st, limit); perStep > 0; step = min(4*step, lookLimit) {
		left := lookLimit - out.looked
		if left < perStep {
			at.Stage = number
			out.next, out.partial = &at, true
			return false, nil
		}
		depth := min(step, left/perStep)
		wanted := limit + 1 - len(out.rows)
		if judges { // and so only find knows how many match
			wanted = lookLimit
		}
		s, err := o.scan(ctx, f, st, number, keys, at, depth, wanted)
		if err != nil {
			return false, err
		}
		out.looked += s.looked
		for _, h := range s.rows {
			at = h.place()
			if !within(h.ReceivedAt, f.From, f.To) || judges && !f.takesText(h.LastError) {
				continue // statements compare times roughly
			}
			if len(out.rows) == limit { // so there is more
				last := out.rows[limit-1].place()
				out.next = &last
				return false, nil
			}
			out.rows = append(out.rows, h)
		}
		if len(s.rows) == wanted {
			continue // there may be more before the edge
		}
		if s.edge == nil {
			return true, nil
		}
		at = *s.edge
		if perStep = (s.looked + depth - 1) / depth; st.Keyed() {
			keys, perStep = s.keys, len(s.keys)
		}
	}
	return true, nil
}

// keysFor returns the handler keys for which a stage is searched.
func (o statusSearch) keysFor(ctx context.Context, f *filter, st store.Stage) ([]string, error) {
	if len(f.HandlerKeys) > 0 {
		return distinct(f.HandlerKeys), nil
	}
	return o.store.KeysIn(ctx, o.pool(ctx), st, maxKeys)
}
