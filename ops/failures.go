package ops

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/fingerprint"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// Failures is an inbox's failures, grouped by their kind.
type Failures struct {
	// Groups with the most statuses come first.
	Groups []FailureGroup
	// Looked is the number of statuses that were read. Capped means that there are more, so counts
	// may be higher and groups may be missing.
	Looked int
	Capped bool
}

// FailureGroup has the statuses of one handler whose errors are equal except for numbers, IDs,
// times, addresses and quoted text.
type FailureGroup struct {
	// Fingerprint is a value for Filter.Fingerprint. It is stored with the error, so a redaction
	// hook of this Ops does not change it.
	Fingerprint string
	HandlerKey  string
	// Error is the normalised error of Sample; empty if the redaction hook hides it. A status
	// without a stored error is in no group.
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
func (o *Ops) Failures(ctx context.Context, filter Filter) (Failures, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	fail := func(err error) (Failures, error) { return Failures{}, fmt.Errorf("group failures: %w", err) }
	f, err := forGroups(filter)
	if err != nil {
		return fail(err)
	}
	keys, err := o.keysFor(ctx, f, byGroup)
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

// isGrouped is the condition of the index on failures, for the rows that belong to groups. It
// repeats the index's terms literally: SQLite uses a partial index only for the same terms.
const isGrouped = `completed_at IS NULL AND fingerprint IS NOT NULL AND (is_poisoned OR error_count + abandoned_count + interrupted_count > 0)`

// failureGroups uses the index on failures with one step per group (a loose index scan), however
// many statuses a group has. It returns at most $2 groups of each handler key after a fingerprint.
const failureGroups = `
WITH RECURSIVE groups(handler_key, fingerprint, number) AS (
	SELECT {0}, {1}, 0 FROM {list}
	UNION ALL
	SELECT g.handler_key, (SELECT CAST(s.fingerprint AS text) FROM {statuses} s WHERE s.handler_key = g.handler_key AND ` + isGrouped + `
		AND s.fingerprint > g.fingerprint ORDER BY s.fingerprint LIMIT 1), g.number + 1
	FROM groups g WHERE g.fingerprint IS NOT NULL AND g.number < $2
)
SELECT handler_key, fingerprint, number FROM groups WHERE fingerprint IS NOT NULL AND number > 0`

// countGroups uses the index on failures and reads the newest $2 statuses of each group before an
// ID. It is MATERIALIZED because a planner repeats the condition in each aggregate otherwise. What
// is shown of a group is read by the index on open statuses. Times are not compared again: our own form is
// compared exactly here, other forms on SQLite to the second.
const countGroups = `
WITH groups AS (SELECT {0} AS handler_key, {1} AS fingerprint, {2 as ID} AS before FROM {list}),
found AS MATERIALIZED (
	SELECT CAST(s.id AS text){bytewise} AS id, s.handler_key, s.fingerprint, s.is_poisoned, s.created_at,
		(` + stateBits + ` & $3) <> 0 AND (NOT $7 OR (
			SELECT ($4 = '' OR type = $4) AND (received_at >= $5 OR {in another form} AND received_at >= $8) AND received_at < $6
			FROM {messages} WHERE number = s.message_number
		)) AS matched
	FROM groups g {each} FROM {statuses}
		WHERE handler_key = g.handler_key AND fingerprint = g.fingerprint AND ` + isGrouped + ` AND id < g.before
		ORDER BY id DESC LIMIT $2
	{/each}
),
counted AS (
	SELECT count(*) AS looked, sum(CASE WHEN matched AND is_poisoned THEN 1 ELSE 0 END) AS poisoned,
		sum(CASE WHEN matched AND NOT is_poisoned THEN 1 ELSE 0 END) AS failing,
		min(CASE WHEN matched THEN created_at END) AS first_seen, max(CASE WHEN matched THEN created_at END) AS last_seen,
		min(id) AS lowest, COALESCE(max(CASE WHEN matched THEN id END), min(id)) AS sample
	FROM found GROUP BY handler_key, fingerprint
)
SELECT looked, poisoned, failing, first_seen, last_seen, lowest, ` + rowColumns + `
FROM counted c {each} FROM {statuses} WHERE id = c.sample{as ID} AND ` + base.OpenSQL + ` {/each}`

// groupCount is what one statement has counted of a group.
type groupCount struct {
	looked, poisoned, failing int64
	first, last               store.Stamp
	lowest                    string // the oldest ID looked at
	sample                    row
}

func (o *Ops) scanGroupCount(rows *sql.Rows, c *groupCount) error {
	return o.scanColumns(rows, &c.sample, &c.looked, &c.poisoned, &c.failing, &c.first, &c.last, &c.lowest)
}

// maxGroups is how many failure groups are returned.
const maxGroups = 1000

// groupRef is a group, and the ID up to which it has been counted.
type groupRef [3]string // handler key, fingerprint, ID

// groupID identifies a group.
type groupID struct{ handlerKey, fingerprint string }

// grouping counts failures by group.
type grouping struct {
	filter *filter
	groups map[groupID]*FailureGroup
	looked int
	capped bool
}

// take finds and counts the groups of these handler keys. It works in rounds: each round divides
// the remaining statuses evenly among the groups that have more.
func (g *grouping) take(ctx context.Context, o *Ops, keys []string) error {
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
func (g *grouping) find(ctx context.Context, o *Ops, keys []string) (refs []groupRef, err error) {
	if g.filter.Fingerprint != "" {
		for _, key := range keys {
			refs = append(refs, groupRef{key, g.filter.Fingerprint, lastID})
		}
		return refs, nil
	}
	if len(keys) == 0 {
		return nil, nil
	}
	after := make([]groupRef, len(keys)) // those whose groups are not all known, and the last that is
	for i, key := range keys {
		after[i][0] = key
	}
	for round := 0; len(after) > 0 && round < maxRounds && len(refs)+len(after) <= maxGroups; round++ {
		var found []groupRef
		if found, after, err = g.findMore(ctx, o, after, (maxGroups-len(refs))/len(after)); err != nil {
			return nil, err
		}
		refs = append(refs, found...)
	}
	g.capped = len(after) > 0
	return refs, nil
}

// maxRounds is the number of rounds in which groups are found. Each round divides what is left
// among the handlers that have more.
const maxRounds = 8

// findMore returns up to perKey groups of each handler key after one of its groups, and the last
// group of each key that has more.
func (g *grouping) findMore(
	ctx context.Context, o *Ops, after []groupRef, perKey int,
) (found, more []groupRef, err error) {
	list, err := jsonOf(after)
	if err != nil {
		return nil, nil, err
	}
	type numbered struct {
		groupRef
		number int
	}
	read, err := readMany(ctx, o, failureGroups, func(rows *sql.Rows, r *numbered) error {
		r.groupRef[2] = lastID
		return rows.Scan(&r.groupRef[0], &r.groupRef[1], &r.number)
	}, list, perKey+1)
	last := map[string]groupRef{}
	for _, r := range read {
		if r.number == perKey {
			last[r.groupRef[0]] = r.groupRef
		}
	}
	for _, r := range read {
		if r.number > perKey {
			more = append(more, last[r.groupRef[0]])
		} else {
			found = append(found, r.groupRef)
		}
	}
	return found, more, err
}

// round counts up to most statuses of each group, and returns the groups that have more.
func (g *grouping) round(ctx context.Context, o *Ops, refs []groupRef, most int) ([]groupRef, error) {
	list, err := jsonOf(refs)
	if err != nil {
		return nil, err
	}
	counts, err := readMany(ctx, o, countGroups, o.scanGroupCount,
		append([]any{list, most}, o.groupArguments(g.filter)...)...)
	if err != nil {
		return nil, err
	}
	var more []groupRef
	for _, c := range counts {
		g.looked += int(c.looked)
		name := groupID{c.sample.HandlerKey, c.sample.Fingerprint}
		if int(c.looked) == most {
			more = append(more, groupRef{name.handlerKey, name.fingerprint, c.lowest})
		}
		if c.poisoned+c.failing == 0 {
			continue
		}
		group := g.groups[name]
		if group == nil {
			group = &FailureGroup{Fingerprint: name.fingerprint, HandlerKey: name.handlerKey, Sample: c.sample.Status,
				Error: fingerprint.Normalise(c.sample.LastError), FirstSeen: c.first.Time, LastSeen: c.last.Time}
			g.groups[name] = group
		}
		group.Poisoned += c.poisoned
		group.Failing += c.failing
		if c.first.Before(group.FirstSeen) {
			group.FirstSeen = c.first.Time
		}
		if c.last.After(group.LastSeen) {
			group.LastSeen = c.last.Time
		}
	}
	return more, nil
}

// groupArguments returns the parameters of countGroups from $3 on.
func (o *Ops) groupArguments(f *filter) []any {
	from, until := exactly(f.From, f.To)
	roughly, _ := o.roughly(f.From, f.To)
	return []any{f.states, f.Type, o.stamp(from), o.stamp(until), f.comparesMessage(), o.stamp(roughly)}
}

func (g *grouping) result() Failures {
	out := Failures{Looked: g.looked, Capped: g.capped}
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
