package ops

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/fingerprint"
	"github.com/gorm-inbox/inbox/models"
)

// filter is a Filter that has been checked.
type filter struct {
	Filter
	// states asked for, without StateFailing; failing says that of pending ones
	// only the failing are.
	states  map[State]bool
	failing bool
	text    string // ErrorText in lower case
	want    wanted // to tell whether a status matches
}

// checked prepares a filter, or says what is wrong with it.
func (f Filter) checked() (*filter, error) {
	if len(f.States) == 0 && (f.ErrorText != "" || f.Fingerprint != "") {
		f.States = []State{StatePoisoned, StateFailing}
	}
	p := &filter{Filter: f, states: map[State]bool{}, text: strings.ToLower(f.ErrorText)}
	p.want.texts = f.ErrorText != "" || f.Fingerprint != ""
	p.want.message = f.Type != "" || !f.From.IsZero() || !f.To.IsZero()
	for _, s := range f.States {
		if !slices.Contains(States(), s) {
			return nil, badInput("state", "%q is none of %s", s, joined(States()))
		}
		if s == StateFailing {
			p.failing = true
			continue
		}
		p.states[s] = true
	}
	if p.states[StatePending] {
		p.failing = false // part of it
	}
	if len(f.HandlerKeys) > mostKeys {
		return nil, badInput("handler keys", "%d are given, at most %d are allowed", len(f.HandlerKeys), mostKeys)
	}
	for _, key := range f.HandlerKeys {
		if err := checkText("handler key", key, 1, models.MaxHandlerKey); err != nil {
			return nil, err
		}
	}
	for _, each := range []struct {
		name, text string
		most       int
	}{{"message ID", f.MessageID, models.MaxMessageID}, {"namespace", f.Namespace, models.MaxChannel},
		{"type", f.Type, models.MaxType}, {"error text", f.ErrorText, models.MaxLastError},
		{"fingerprint", f.Fingerprint, 100}} {
		if err := checkText(each.name, each.text, 0, each.most); err != nil {
			return nil, err
		}
	}
	if f.Namespace != "" && f.MessageID == "" {
		return nil, badInput("namespace", "it is given without a message ID")
	}
	return p, checkAges(f.From, f.To)
}

// mostKeys is how many handler keys are looked at one by one.
const mostKeys = 1000

// takes tells whether a status matches.
func (f *filter) takes(g *glimpse) bool {
	switch {
	case g.empty:
		return false
	case len(f.States) > 0 && !f.states[g.state] && !(f.failing && g.failing),
		len(f.HandlerKeys) > 0 && !slices.Contains(f.HandlerKeys, g.key),
		f.want.message && !f.takesMessage(g.typ, g.receivedAt),
		f.text != "" && !strings.Contains(strings.ToLower(g.lastError), f.text),
		f.Fingerprint != "" && f.Fingerprint != fingerprintOf(g.key, g.lastError, g.failed()):
		return false
	}
	return true
}

// poisonedAlone tells whether all that is poisoned matches, and nothing else, but
// for the handler keys.
func (f *filter) poisonedAlone() bool {
	return len(f.States) == 1 && f.states[StatePoisoned] && f.MessageID == "" && !f.want.texts && !f.want.message
}

// takesMessage tells whether the statuses of a message may match.
func (f *filter) takesMessage(messageType string, receivedAt time.Time) bool {
	return (f.Type == "" || messageType == f.Type) && (f.From.IsZero() || !receivedAt.Before(f.From)) &&
		(f.To.IsZero() || receivedAt.Before(f.To))
}

// fingerprintOf names the failure group of a status that has failed, whether its
// error is shown or not, or that has an error as history.
func fingerprintOf(handlerKey, lastError string, failed bool) string {
	if lastError == "" && !failed {
		return ""
	}
	return fingerprint.Of(handlerKey, lastError)
}

// stages are the parts of the list of what matches, in order. What only partial
// indexes hold is walked by these, all else by age.
func (f *filter) stages() []stage {
	if f.MessageID != "" {
		return []stage{byMessage}
	}
	if len(f.States) == 0 || f.states[StateCompleted] || f.states[StateDiscarded] || f.states[StateSuperseded] {
		return []stage{byMessages}
	}
	var stages []stage
	if f.states[StatePoisoned] {
		stages = append(stages, byPoisoned)
	}
	if f.states[StatePending] || f.states[StateProcessing] || f.failing {
		stages = append(stages, byDue)
	}
	if f.states[StatePending] || f.failing { // a failed head may be waiting again
		stages = append(stages, byWaiting)
	}
	return stages
}

// found is what a walk has come to.
type found struct {
	rows []glimpse // that match
	// next is behind the last row to be given out, nil at the end of the list.
	next    *place
	partial bool
	looked  int
}

// find walks the list of what matches from a place on, until it has limit rows,
// or has looked at most rows.
func (o *Ops) find(ctx context.Context, f *filter, after *place, limit, most int) (found, error) {
	var out found
	o.wantFor(f)
	first := 0
	if after != nil {
		first = after.Stage
	}
	stages := f.stages()
	if first >= len(stages) {
		return out, badInput("cursor", "it is not one of this list")
	}
	for i := first; i < len(stages); i++ {
		from, err := o.source(ctx, f, stages[i], after, limit+1)
		if err != nil {
			return out, err
		}
		after = nil
		for {
			g, ok, err := from.next(ctx)
			if err != nil {
				return out, err
			}
			if !ok {
				break
			}
			g.place.Stage = i
			out.looked++
			if f.takes(&g) {
				if len(out.rows) == limit { // so there is more
					out.next = &out.rows[limit-1].place
					return out, nil
				}
				out.rows = append(out.rows, g)
			}
			if out.looked >= most {
				out.next, out.partial = &g.place, true
				return out, nil
			}
		}
	}
	return out, nil
}

// wantFor adds what the redaction hook is told of a text.
func (o *Ops) wantFor(f *filter) {
	f.want.message = f.want.message || f.want.texts && o.redacts()
}

func (o *Ops) source(ctx context.Context, f *filter, st stage, after *place, chunk int) (source, error) {
	chunk = min(chunk, mostAtOnce)
	switch st {
	case byMessage:
		w := &ofMessage{o: o, filter: f}
		if after != nil {
			w.after = *after
		}
		return w, nil
	case byMessages:
		return o.byReceived(f, after, chunk), nil
	}
	if after != nil && after.ID == "" {
		return nil, badInput("cursor", "it is not one of this list")
	}
	keys := f.HandlerKeys
	if len(keys) == 0 {
		var err error
		if keys, err = o.openKeys(ctx, st); err != nil {
			return nil, err
		}
	}
	keys = distinct(keys)
	// All of them are asked before the first row is given: what is read ahead is
	// shared among them.
	return o.keyed(st, keys, after, max(chunk/max(len(keys), 1), leastAtOnce), f.want), nil
}
