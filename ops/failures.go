package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/fingerprint"
)

// Failures are the failures of an inbox by their kind.
type Failures struct {
	// Groups with the most statuses come first.
	Groups []FailureGroup
	// Looked counts the statuses looked at; Capped: there are more, so that
	// counts may be higher and groups be missing.
	Looked int
	Capped bool
}

// FailureGroup is a handler's statuses that failed alike: with an error that is
// the same but for numbers, IDs, times, addresses and what stands in quotes.
type FailureGroup struct {
	// Fingerprint is for Filter.Fingerprint. It is made of what is shown: where
	// another redaction hook is set it is another.
	Fingerprint string
	HandlerKey  string
	// Error is the normalised error; empty if none is stored or shown.
	Error string
	// Poisoned and Failing count the statuses.
	Poisoned int64
	Failing  int64
	// FirstSeen and LastSeen are when the first and the last of the statuses were
	// accepted.
	FirstSeen time.Time
	LastSeen  time.Time
	// Sample is the newest of them.
	Sample Status
}

// Failures groups the poisoned and the failing statuses that match the filter
// by fingerprint, of at most LookLimit statuses looked at. Filter.States may
// only name StatePoisoned and StateFailing; empty is both (contract 11.2).
func (o *Ops) Failures(ctx context.Context, filter Filter) (Failures, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	if len(filter.States) == 0 {
		filter.States = []State{StatePoisoned, StateFailing}
	}
	fail := func(err error) (Failures, error) { return Failures{}, fmt.Errorf("group failures: %w", err) }
	for _, s := range filter.States {
		if s != StatePoisoned && s != StateFailing {
			return fail(badInput("state", "%q, allowed are %s and %s", s, StatePoisoned, StateFailing))
		}
	}
	f, err := filter.checked()
	if err != nil {
		return fail(err)
	}
	f.want.texts = true
	o.wantFor(f)
	sources, err := o.failing(ctx, f)
	if err != nil {
		return fail(err)
	}
	g := grouping{filter: f, groups: map[[2]string]*FailureGroup{}, normalised: map[string]string{}}
	if err := g.take(ctx, sources, LookLimit); err != nil {
		return fail(err)
	}
	out := g.result()
	if err := o.sample(ctx, out.Groups); err != nil {
		return fail(err)
	}
	return out, nil
}

// failing are the stages of what failed, each handler key's by itself, so that
// one with many failures leaves room for the others.
func (o *Ops) failing(ctx context.Context, f *filter) ([]source, error) {
	var sources []source
	for _, st := range f.stages() {
		if st == byMessage {
			return []source{&ofMessage{o: o, filter: f}}, nil
		}
		keys := distinct(f.HandlerKeys)
		if len(keys) == 0 {
			var err error
			if keys, err = o.openKeys(ctx, st); err != nil {
				return nil, err
			}
		}
		for _, key := range keys {
			sources = append(sources, o.keyed(st, []string{key}, nil, mostAtOnce/10, f.want))
		}
	}
	return sources, nil
}

// grouping puts failures into groups.
type grouping struct {
	filter     *filter
	groups     map[[2]string]*FailureGroup // by handler key and normalised error
	normalised map[string]string           // by error: many are the same
	looked     int
	capped     bool
}

// take looks at most rows, in rounds: in each the sources that have more share
// evenly what is left.
func (g *grouping) take(ctx context.Context, sources []source, most int) error {
	for len(sources) > 0 && g.looked < most {
		var more []source
		share := max((most-g.looked)/len(sources), 1)
		for _, from := range sources {
			ended := false
			for n := 0; n < share && g.looked < most && !ended; n++ {
				seen, ok, err := from.next(ctx)
				if err != nil {
					return err
				}
				if ended = !ok; ok {
					g.add(&seen)
				}
			}
			if !ended {
				more = append(more, from)
			}
		}
		sources = more
	}
	// Whether what is left has a row is for them to say.
	for _, from := range sources {
		_, ok, err := from.next(ctx)
		if err != nil {
			return err
		}
		if g.capped = ok; ok {
			break
		}
	}
	return nil
}

func (g *grouping) add(r *glimpse) {
	g.looked++
	if !g.filter.takes(r) || !r.failed() {
		return
	}
	normalised, known := g.normalised[r.lastError]
	if !known {
		if normalised = fingerprint.Normalise(r.lastError); len(g.normalised) < mostAtOnce { // else each is another
			g.normalised[r.lastError] = normalised
		}
	}
	of := [2]string{r.key, normalised}
	group := g.groups[of]
	if group == nil {
		group = &FailureGroup{Fingerprint: fingerprint.Of(r.key, r.lastError), HandlerKey: r.key, Error: normalised,
			FirstSeen: r.createdAt}
		g.groups[of] = group
	}
	if r.state == StatePoisoned {
		group.Poisoned++
	} else {
		group.Failing++
	}
	if r.createdAt.Before(group.FirstSeen) {
		group.FirstSeen = r.createdAt
	}
	if group.Sample.ID == "" || r.createdAt.After(group.LastSeen) {
		group.LastSeen = r.createdAt
		group.Sample = Status{ID: r.id, MessageID: r.messageID, HandlerKey: r.key, State: r.state, Failing: r.failing,
			Version:   r.version,
			LastError: r.lastError, Fingerprint: group.Fingerprint, Type: r.typ, ReceivedAt: r.receivedAt,
			CreatedAt: r.createdAt}
	}
}

// sample completes the samples, as far as they have not changed meanwhile.
func (o *Ops) sample(ctx context.Context, groups []FailureGroup) error {
	of := make(map[string]*FailureGroup, len(groups))
	samples := make([]glimpse, len(groups))
	for i := range groups {
		of[groups[i].Sample.ID] = &groups[i]
		samples[i].id = groups[i].Sample.ID
	}
	rows, err := o.whole(ctx, samples)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if group := of[r.ID]; r.Version == group.Sample.Version {
			group.Sample = r.Status
		}
	}
	return nil
}

func (g *grouping) result() Failures {
	out := Failures{Looked: g.looked, Capped: g.capped}
	for _, group := range g.groups {
		out.Groups = append(out.Groups, *group)
	}
	slices.SortFunc(out.Groups, func(a, b FailureGroup) int {
		return cmp.Or(cmp.Compare(b.Poisoned+b.Failing, a.Poisoned+a.Failing), b.LastSeen.Compare(a.LastSeen),
			cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return out
}
