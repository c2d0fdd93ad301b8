package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/fingerprint"
	"github.com/gorm-inbox/inbox/internal/store"
)

// Failures is an inbox's failures, grouped by their kind.
type Failures struct {
	// Groups with the most statuses come first.
	Groups []FailureGroup
	// Scanned is the number of statuses that were read. Capped means that there are more, so counts may be higher and
	// groups may be missing.
	Scanned int
	Capped  bool
}

// FailureGroup has the statuses of one handler whose errors are equal except for numbers, IDs, times, addresses and
// quoted text.
type FailureGroup struct {
	// Fingerprint is a value for Filter.Fingerprint. It is stored with the error, so a redaction hook of this Ops does
	// not change it.
	Fingerprint string
	HandlerKey  string
	// Error is the normalised error of Sample; empty if the redaction hook hides it. A status without a stored error is
	// in no group.
	Error string
	// Poisoned and Failing count the statuses.
	Poisoned int64
	Failing  int64
	// FirstSeen and LastSeen are when the first and the last of the statuses were accepted.
	FirstSeen time.Time
	LastSeen  time.Time
	// Sample is the newest of the statuses.
	Sample Status
}

// Failures groups the poisoned and the failing statuses that match the filter by fingerprint. It finds up to 1,000
// groups and reads at most 10,000 statuses. The groups are divided evenly among the handlers and the statuses among the
// groups, the newest first. Filter.States may contain only StatePoisoned and StateFailing; empty means both.
// Filter.ErrorText is compared with the groups' Error. Filter.MessageID is ErrBadInput (contract 11.2).
func (o statusSearch) Failures(ctx context.Context, filter Filter) (Failures, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	fail := func(err error) (Failures, error) { return Failures{}, fmt.Errorf("group failures: %w", err) }
	f, err := forGroups(filter)
	if err != nil {
		return fail(err)
	}
	keys, err := o.keysFor(ctx, f, store.StageGroup)
	if err != nil {
		return fail(err)
	}
	g := grouping{filter: f, groups: map[groupID]*FailureGroup{}}
	if err := g.take(ctx, o, keys); err != nil {
		return fail(err)
	}
	return g.result(), nil
}

// forGroups checks a filter for Failures.
func forGroups(given Filter) (*filter, error) {
	for _, s := range given.States {
		if s != StatePoisoned && s != StateFailing {
			return nil, badInput("state", "%q: must be %s or %s", s, StatePoisoned, StateFailing)
		}
	}
	if len(given.States) == 0 {
		given.States = []State{StatePoisoned, StateFailing}
	}
	if given.MessageID != "" {
		return nil, badInput("message ID", "groups are not of one message: list its statuses")
	}
	return given.checked()
}

// maxGroups is how many failure groups are returned.
const maxGroups = 1000

// groupID identifies a group.
type groupID struct{ handlerKey, fingerprint string }

// grouping counts failures by group.
type grouping struct {
	filter *filter
	groups map[groupID]*FailureGroup
	looked int
	capped bool
}

// take finds and counts the groups of these handler keys. It works in rounds: each round divides the remaining statuses
// evenly among the groups that have more.
func (g *grouping) take(ctx context.Context, o statusSearch, keys []string) error {
	refs, err := g.find(ctx, o, keys)
	if err != nil {
		return err
	}
	for len(refs) > 0 && lookLimit-g.looked >= len(refs) {
		if refs, err = g.round(ctx, o, refs, (lookLimit-g.looked)/len(refs)); err != nil {
			return err
		}
	}
	g.capped = g.capped || len(refs) > 0
	return nil
}

// find returns the groups of these handler keys.
func (g *grouping) find(ctx context.Context, o statusSearch, keys []string) (refs []store.FailureGroup, err error) {
	if g.filter.Fingerprint != "" {
		for _, key := range keys {
			refs = append(refs, store.FailureGroup{HandlerKey: key, Fingerprint: g.filter.Fingerprint, Before: lastID})
		}
		return refs, nil
	}
	if len(keys) == 0 {
		return nil, nil
	}
	after := make([]store.FailureGroup, len(keys)) // those whose groups are not all known, and the last that is
	for i, key := range keys {
		after[i].HandlerKey = key
	}
	for round := 0; len(after) > 0 && round < maxRounds && len(refs)+len(after) <= maxGroups; round++ {
		var found []store.FailureGroup
		if found, after, err = g.findMore(ctx, o, after, (maxGroups-len(refs))/len(after)); err != nil {
			return nil, err
		}
		refs = append(refs, found...)
	}
	g.capped = len(after) > 0
	return refs, nil
}

// maxRounds is the number of rounds in which groups are found. Each round divides the rest among the handlers that have
// more.
const maxRounds = 8

// findMore returns up to perKey groups of each handler key after one of its groups, and the last group of each key that
// has more.
func (g *grouping) findMore(
	ctx context.Context, o statusSearch, after []store.FailureGroup, perKey int,
) (found, more []store.FailureGroup, err error) {
	read, err := o.store.FailureGroups(ctx, o.largePool(ctx), after, perKey+1)
	last := map[string]store.FailureGroup{}
	for _, r := range read {
		of := store.FailureGroup{HandlerKey: r.HandlerKey, Fingerprint: r.Fingerprint, Before: lastID}
		if r.Number <= perKey {
			found = append(found, of)
		}
		if r.Number == perKey {
			last[r.HandlerKey] = of
		}
	}
	for _, r := range read {
		if r.Number > perKey {
			more = append(more, last[r.HandlerKey])
		}
	}
	return found, more, err
}

// round counts up to most statuses of each group, and returns the groups that have more.
func (g *grouping) round(ctx context.Context, o statusSearch, refs []store.FailureGroup, most int) (
	[]store.FailureGroup, error,
) {
	scan := store.GroupScan{Groups: refs, Depth: most, States: g.filter.states, Type: g.filter.Type,
		ComparesMessage: g.filter.comparesMessage()}
	scan.From, scan.To = exactly(g.filter.From, g.filter.To)
	scan.Rough, _ = o.roughly(g.filter.From, g.filter.To)
	counts, err := o.store.CountGroups(ctx, o.largePool(ctx), scan)
	if err != nil {
		return nil, err
	}
	var more []store.FailureGroup
	for _, c := range counts {
		g.looked += int(c.Looked)
		sample := o.status(&c.Sample)
		name := groupID{sample.HandlerKey, sample.Fingerprint}
		if int(c.Looked) == most {
			more = append(more, store.FailureGroup{HandlerKey: name.handlerKey, Fingerprint: name.fingerprint, Before: c.Lowest})
		}
		if c.Poisoned+c.Failing == 0 {
			continue
		}
		group := g.groups[name]
		if group == nil {
			group = &FailureGroup{Fingerprint: name.fingerprint, HandlerKey: name.handlerKey, Sample: sample,
				Error: fingerprint.Normalise(sample.LastError), FirstSeen: c.FirstSeen, LastSeen: c.LastSeen}
			g.groups[name] = group
		}
		group.Poisoned += c.Poisoned
		group.Failing += c.Failing
		if c.FirstSeen.Before(group.FirstSeen) {
			group.FirstSeen = c.FirstSeen
		}
		if c.LastSeen.After(group.LastSeen) {
			group.LastSeen = c.LastSeen
		}
	}
	return more, nil
}

func (g *grouping) result() Failures {
	out := Failures{Scanned: g.looked, Capped: g.capped}
	for _, group := range g.groups {
		if g.filter.takesText(group.Error) {
			out.Groups = append(out.Groups, *group)
		}
	}
	slices.SortFunc(out.Groups, func(a, b FailureGroup) int {
		return cmp.Or(cmp.Compare(b.Poisoned+b.Failing, a.Poisoned+a.Failing), b.LastSeen.Compare(a.LastSeen),
			cmp.Compare(a.HandlerKey, b.HandlerKey), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return out
}
