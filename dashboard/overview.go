package dashboard

import (
	"fmt"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/ops"
)

// tile is one figure with its chart of the last hour.
type tile struct {
	Name, Value, Note, Link string
	Tone                    string // "bad", "warn", "calm" or ""
	Chart                   chart
}

// verdict sums up the state of the inbox in a sentence, by its most severe condition.
type verdict struct {
	Tone, Text, More string
	// Link is the page with details, and To the link's text. Both are empty if there is none.
	Link, To string
}

type overviewBody struct {
	ops.Overview
	Verdict verdict
	Tiles   []tile
	// Peak is the largest number of pending statuses of one handler. Bars are relative to it.
	Peak int64
	Jobs []jobView
}

// Share returns a count in percent of Peak.
func (b overviewBody) Share(c ops.Count) int64 {
	if b.Peak == 0 {
		return 0
	}
	return min(100, (c.N*100+b.Peak-1)/b.Peak)
}

func (q *request) overview() error {
	seen, err := q.d.overview(q.r.Context())
	if err != nil {
		return err
	}
	b := overviewBody{Overview: seen, Verdict: verdictOf(seen), Tiles: q.tiles(seen)}
	for _, h := range seen.Handlers {
		b.Peak = max(b.Peak, h.Pending.N)
	}
	if q.may("GET", "job") {
		b.Jobs = q.d.jobs.running(q.now())
	}
	return q.render("overview", "Overview", "overview", b)
}

func (q *request) tiles(seen ops.Overview) []tile {
	all, now := total(seen), q.now()
	hour := q.d.samples.hour()
	if seen.Incomplete == "" {
		hour = append(hour, sampleOf(seen, now)) // so that the chart ends at the figure above it
	}
	counted := func(value func(sample) int64) chart { return plot(hour, now, value, number[int64]) }
	backlog := all.Pending
	backlog.N += all.Processing.N
	tiles := []tile{
		{Name: "Backlog", Value: countText(backlog), Link: "./messages?state=pending&state=processing",
			Note:  countText(all.Processing) + " processing, " + countText(all.Due) + " due",
			Chart: counted(func(s sample) int64 { return s.backlog })},
		{Name: "Oldest due", Value: age(all.OldestDueAge), Link: "./messages?state=pending", Note: "waiting longest to run",
			Chart: plot(hour, now, func(s sample) int64 { return int64(s.oldest / time.Second) },
				func(n int64) string { return age(time.Duration(n) * time.Second) })},
		{Name: "Poisoned", Value: countText(all.Poisoned), Link: "./failures", Note: "wait for an operator",
			Chart: counted(func(s sample) int64 { return s.poisoned })},
		{Name: "Rejected", Value: countText(seen.Rejected), Link: "./rejected", Note: "could not be accepted",
			Chart: counted(func(s sample) int64 { return s.rejected })},
		{Name: "Workers", Value: number(seen.WorkersAlive), Link: "./workers", Note: "alive",
			Chart: counted(func(s sample) int64 { return s.workers })},
	}
	if all.Due.Unknown {
		tiles[1].Value = "?"
	} else if all.OldestDueAge == 0 {
		tiles[1].Value, tiles[1].Note = "–", "nothing is due"
	} else if slices.ContainsFunc(seen.Reasons, func(r ops.HealthReason) bool { return r.Code == health.OldestDue }) {
		tiles[1].Tone = "warn"
	}
	if all.Poisoned.N > 0 {
		tiles[2].Tone = "bad"
	} else if !all.Poisoned.Unknown {
		tiles[2].Note = "nothing is poisoned"
	}
	if seen.Rejected.N > 0 {
		tiles[3].Tone = "warn"
	} else if !seen.Rejected.Unknown {
		tiles[3].Note = "every record was accepted"
	}
	if seen.WorkersAlive == 0 {
		tiles[4].Tone, tiles[4].Note = "bad", "nothing is processed"
	}
	return tiles
}

// verdictOf returns the verdict for the most severe condition.
func verdictOf(seen ops.Overview) verdict {
	all := total(seen)
	var poisoned, paused, unserved int
	for _, h := range seen.Handlers {
		if h.Poisoned.N > 0 {
			poisoned++
		}
		if h.Paused {
			paused++
		}
		if !h.Registered && h.Pending.N > 0 {
			unserved++
		}
	}
	switch {
	case seen.WorkersAlive == 0 && all.Due.N > 0:
		return verdict{"bad", "Work is due and no worker is alive.", countText(all.Due) +
			" wait. Check that the application runs and reaches the database.", "workers", "See the workers"}
	case len(seen.Reasons) > 0 && seen.Reasons[0].Unhealthy():
		if halts := haltsIn(seen.Reasons); halts > 0 && seen.Reasons[0].Code == health.Halted {
			return verdictOfHalts(seen.Reasons[0].Channel, halts)
		}
		return verdictFor("bad", seen.Reasons[0])
	case seen.Incomplete != "":
		return verdict{"bad", "Not everything could be counted.", "Right now " + seen.Incomplete + ".", "workers",
			"See the workers"}
	case all.Poisoned.N > 0:
		return verdict{"bad", countText(all.Poisoned) + " poisoned in " + fmt.Sprint(poisoned) +
			plural(int64(poisoned), " handler.", " handlers."),
			"The Failures page groups them by error. Fix the cause, then retry the group.", "failures", "See the failures"}
	case unserved > 0:
		return verdict{"warn", fmt.Sprint(unserved) + plural(int64(unserved), " handler has work that no worker claims.",
			" handlers have work that no worker claims."),
			"Was a handler removed or renamed? A renamed one needs its old key as a legacy key.", "handlers", "See the handlers"}
	case len(seen.Reasons) > 0:
		return verdictFor("warn", seen.Reasons[0])
	case paused > 0:
		return verdict{"warn", fmt.Sprint(paused) + plural(int64(paused), " handler is paused.", " handlers are paused."),
			"Their messages wait until they are resumed.", "handlers", "See the handlers"}
	case seen.Rejected.N > 0:
		return verdict{"warn", countText(seen.Rejected) + plural(seen.Rejected.N, " record was rejected.",
			" records were rejected."), "They could not be accepted, and are kept until they are accepted again or deleted.",
			"rejected", "See the rejected records"}
	case seen.WorkersAlive == 0:
		return verdict{"warn", "No worker is alive.", "Nothing is due, but new messages will wait.", "workers",
			"See the workers"}
	case all.Pending.N+all.Processing.N > 0:
		return verdict{"good", "All is well: work is being processed.", "Nothing is poisoned or rejected.", "", ""}
	}
	return verdict{"good", "All is well: no work is pending.", "Nothing is due, poisoned or rejected.", "", ""}
}

// verdictOfHalts leaves the reasons, which may be long errors, to the health section.
func verdictOfHalts(channel string, halts int) verdict {
	text := fmt.Sprintf("%d partitions are halted.", halts)
	if halts == 1 {
		text = "A partition of channel " + short(visible(channel), 100) + " is halted."
	}
	return verdict{"bad", text, "The others go on. The health section below has the reason.", "consumers", "See the consumers"}
}

// verdictFor returns the verdict for the worst health reason, with a link to the page that has details of it.
func verdictFor(tone string, r ops.HealthReason) verdict {
	page := "workers"
	switch {
	case r.Channel != "":
		page = "consumers"
	case r.HandlerKey != "":
		page = "handlers"
	}
	return verdict{tone, "A worker is " + string(r.State) + ": " + short(visible(r.String()), 200),
		"The health section below lists each reason.", page, "See the " + page}
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
