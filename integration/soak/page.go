package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// harm describes a disturbance on the page.
type harm struct{ name, what, felt string }

// harms are all disturbances, in the page's order.
var harms = []harm{
	{"worker_killed", "SIGKILL to a worker", "it had claims, and others took them over"},
	{"worker_frozen", "SIGSTOP to a worker, also beyond its timeout", "others took over its claims before it went on"},
	{"worker_terminated", "SIGTERM to a worker", "its process has ended and left no claim"},
	{"replicas_down", "all workers killed and kept down", "nothing was processed meanwhile"},
	{"rolling_upgrade", "workers replaced one by one by a version with renamed handlers",
		"new workers handled messages that were accepted under the old keys"},
	{"renamed_again", "messages come again to a version whose handlers were renamed since", "it knew some of them"},
	{"writer_frozen", "SIGSTOP to a worker that has SQLite's write lock, for longer than `busy_timeout`",
		"an accept failed or waited"},
	{"processes_killed", "SIGKILL to all processes that share SQLite's file", "there were claims, and new processes took them over"},
	{"clock_behind", "a worker's clock ten seconds behind those of others on SQLite's file, right",
		"its heartbeats had both times"},
	{"clock_jumped", "a worker's clock an hour ahead, right, an hour behind, right", "it logged each time that its clock is wrong"},
	{"cleaner_clock_jumped", "the same with the clock of the process that only cleans", "it cleaned with each wrong time"},
	{"handler_paused", "an operator pauses a handler and resumes it", "no run of it began meanwhile"},
	{"poisoned_retried", "an operator retries what is poisoned", "some was retried"},
	{"database_killed", "SIGKILL to all processes of the database", "a message could not be accepted"},
	{"database_stopped", "the database is shut down and started", "a message could not be accepted"},
	{"database_frozen", "SIGSTOP to the database", "a message could not be accepted"},
	{"database_slow", "each answer of the database comes 200 ms late", "a message was accepted that late"},
	{"database_answers_lost", "one in forty answers is lost with its connection", "answers were lost"},
	{"commit_answers_lost", "connections are cut between a COMMIT and its answer", "the database had answered COMMITs that were cut off"},
	{"commits_lost", "connections are cut before a COMMIT reaches the database", "COMMITs were cut off"},
	{"connections_cut", "all connections to the database are closed, again and again", "a message could not be accepted"},
	{"answers_silent", "half-open: statements arrive, their answers do not", "an accept failed after standing still for its timeout"},
	{"requests_silent", "half-open: statements do not arrive, and connections stay",
		"an accept failed after standing still for its timeout"},
	{"connections_exhausted", "the server has no connection left", "an accept was refused with 53300"},
	{"database_read_only", "`default_transaction_read_only` is on", "an accept failed because of it"},
	{"serializable_default", "`default_transaction_isolation` is serializable", "a session on the workers' route had it"},
	{"write_lock_held", "another process has SQLite's write lock for longer than `busy_timeout`", "an accept failed or waited"},
	{"disk_full", "the file system of the database has no space", "an accept failed with 53100, on SQLite with FULL"},
	{"failover", "the primary is killed, its synchronous standby promoted", "a message could not be accepted"},
	{"leader_switched_over", "Patroni's leader hands over to a replica", "a message could not be accepted"},
	{"leader_crashed", "SIGKILL to the PostgreSQL of Patroni's leader", "a message could not be accepted"},
	{"leader_killed", "SIGKILL to Patroni's leader and its PostgreSQL", "a message could not be accepted"},
	{"leader_frozen", "SIGSTOP to the same, and it comes back", "a message could not be accepted"},
	{"leader_cut_off", "Patroni's leader does not reach etcd, and clients reach it", "a message could not be accepted"},
	{"pooler_killed", "SIGKILL to the PgBouncer of one worker", "a client lost its connection"},
	{"broker_killed", "SIGKILL to a broker", "it led no partition any more"},
	{"broker_stopped", "a broker is shut down and started", "it led no partition any more"},
	{"broker_frozen", "SIGSTOP to a broker", "it led no partition any more"},
	{"coordinator_moved", "the group's coordinator is shut down", "the other broker took over"},
	{"broker_answers_cut", "answers with records are cut in their middle", "answers were cut"},
	{"rebalance_storm", "a worker joins and leaves five times in a row", "most times it was a member"},
	{"topic_recreated", "a consumed topic is deleted and created again", "all records of the new log were accepted"},
	{"commit_late", "all workers are killed, and their last offsets of a topic arrive after it was created again",
		"Kafka took the offsets, and all records of the new log were accepted"},
}

// page returns the page of a history. What was found before comes from the page of the simulation.
func page(h history, simulation string) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	say("# The ledger of harms\n\n" +
		"`make ledger MINUTES=n SEED=n DATABASE=…` has written this page: nothing here is written by hand. Workers run as\n" +
		"processes on real servers under load, and are harmed, together with their servers, for as long as it says. Then a\n" +
		"judge compares what was produced with the database, with what handlers have written and with Kafka's own log of\n" +
		"committed offsets. `make soak` is the same without the page.\n\n")
	sayRuns(say, h.Runs)
	sayHarms(say, h.Runs)
	sayControls(say, h)
	say("## Bugs found this way\n\n" +
		"What the soak found before this page began was not recorded with seeds. The others are those of\n" +
		"[the simulation](simulation.md#what-it-found), which does such harm in virtual time.\n\n" +
		"| Date | By | Seed | Found |\n|---|---|---|---|\n")
	for _, row := range soakFindings {
		say("| %s | soak | %s | %s |\n", row[0], row[1], row[2])
	}
	for _, row := range findings(simulation) {
		say("| %s | simulation | %s | %s |\n", row[0], row[1], row[2])
	}
	say("\n## What is not promised\n\n" +
		"- A plain handler may run again for a message (reruns), and a message may be published again: both are counted\n" +
		"  above and allowed ([contract 2](contract.md#2-guarantees)).\n" +
		"- What comes again after Retention runs again ([contract 6.5](contract.md#65-old-redeliveries)).\n" +
		"- Without a synchronous standby, a lost primary takes along what it had acknowledged\n" +
		"  ([contract 2](contract.md#2-guarantees)).\n" +
		"- A fixed time to recover. The times above are those of one machine, where harms overlap.\n\n" +
		"## What is not done here\n\n" +
		"- A former release as the other program: its two versions are two sets of handlers of one commit.\n" +
		"- A migration under load: the schema has one version, so there is nothing to migrate from.\n" +
		"- A failover of MariaDB, and networks between machines: the tests have the former.\n" +
		"- SQLite killed while no process has its file open: the judge reads it all the time. A clock that is ahead of the\n" +
		"  others', and the cleaner's: there each process judges by its own ([contract 3.5](contract.md#35-clocks)).\n" +
		"- Hardware: lost writes of disks, and memory that changes.\n")
	return b.String()
}

// soakFindings are the bugs that the soak has found: date, seed and text.
var soakFindings = [][3]string{
	{"2026-11-29", "1", "Behind PgBouncer, messages in progress were charged when the pooler had lost its connection to the " +
		"server (`TestServerConnectionLostBehindPoolerChargesNothing`)"},
}

// sayRuns writes one row for each run, and their sum.
func sayRuns(say func(string, ...any), runs []record) {
	say("## Runs\n\n")
	if len(runs) == 0 {
		say("None is recorded yet.\n\n")
		return
	}
	say("Lost counts messages without their rows or effects, steps, what was to be published, and what was deleted before it\n" +
		"had completed. Stuck counts what was left open in the end. Offset ahead counts records that a committed offset had\n" +
		"passed before they were stored. Other counts offsets that moved back, unrequested results, and workers that crashed\n" +
		"or did not stop in order.\n" +
		"Minutes is how long a run did harm: a signal may end it before the time in its command.\n\n" +
		"| Run | Date | Database | Seed | Minutes | Accepted | Lost | Doubled | Stuck | Out of order | Offset ahead | Other " +
		"| Reruns, allowed | Published again, allowed |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	sum := map[string]int64{}
	minutes := 0.0
	row := func(run, date, database, seed string, minutes float64, f map[string]int64) {
		say("| %s | %s | %s | %s | %.1f |", run, date, database, seed, minutes)
		for _, names := range columns {
			n := int64(0)
			for _, name := range names {
				n += f[name]
			}
			say(" %s |", grouped(n))
		}
		say("\n")
	}
	for i, r := range runs {
		row(fmt.Sprint(i+1), r.Date, r.Database, fmt.Sprint(r.Seed), r.Minutes, r.Figures)
		for name, n := range r.Figures {
			sum[name] += n
		}
		minutes += r.Minutes
	}
	if len(runs) > 1 {
		row("all", "", "", "", minutes, sum)
	}
	say("\n")
	for i, r := range runs {
		say("Run %d: commit `%s`, `%s`; %d messages a second, %d workers and one process that only cleans;", i+1, r.Commit,
			r.Command, r.Rate, r.Workers)
		for j, name := range slices.Sorted(maps.Keys(r.Versions)) {
			say("%s %s %s", map[bool]string{true: "", false: ","}[j == 0], name, r.Versions[name])
		}
		say(".")
		if len(r.LeftOut) > 0 {
			say(" Left out on this machine: %s.", strings.Join(r.LeftOut, ", "))
		}
		if broken := r.broken(); len(broken) > 0 {
			say(" **Broken: %s.**", strings.Join(broken, ", "))
		}
		say("\n\n")
	}
}

// columns are the figures that the columns of a run sum up.
var columns = [][]string{
	{"accepted"}, {"missing", "skipped", "deleted_open", "steps_missing", "published_missing"}, {"doubled", "steps_doubled", "steps_excess"},
	{"pending", "uncommitted", "unsettled"}, {"steps_misordered", "published_misordered"}, {"committed_past_unstored"},
	{"committed_backwards", "misjudged", "unknown", "published_unknown", "worker_failures"},
	{"reruns"}, {"published_again"},
}

// sayHarms writes one row for each harm that some run did.
func sayHarms(say func(string, ...any), runs []record) {
	sum := map[string]tally{}
	for _, r := range runs {
		for name, t := range r.Harms {
			all := sum[name]
			all.Done, all.Felt = all.Done+t.Done, all.Felt+t.Felt
			all.Recoveries = append(slices.Clone(all.Recoveries), t.Recoveries...)
			sum[name] = all
		}
	}
	if len(sum) == 0 {
		return
	}
	say("## Harms\n\n" +
		"A harm counts as felt only if its effect was seen. Short ones, such as a worker that was frozen for less than its\n" +
		"timeout, are done and not felt. Harms of workers, database and brokers overlap, so what was lost or doubled is\n" +
		"counted for whole runs, not for each harm.\n\n" +
		"Recovery is the time, from the end of a harm that was felt, until what it stopped works again: until a message is\n" +
		"accepted and an effect is committed that both began after it, for brokers until a record is accepted. For a worker\n" +
		"that was killed, frozen or terminated it is the time from the signal until it has no claim any more. For a leader\n" +
		"that Patroni replaces it begins with its loss.\n\n" +
		"| Harm | Felt if | Done | Felt | Recovery p50 | p99 | max |\n|---|---|---|---|---|---|---|\n")
	total := tally{}
	for _, harm := range harms {
		t, found := sum[harm.name]
		if !found {
			continue
		}
		slices.Sort(t.Recoveries)
		say("| %s | %s | %s | %s | %s | %s | %s |\n", harm.what, harm.felt, grouped(int64(t.Done)), grouped(int64(t.Felt)),
			percentile(t.Recoveries, 50), percentile(t.Recoveries, 99), percentile(t.Recoveries, 100))
		total.Done, total.Felt = total.Done+t.Done, total.Felt+t.Felt
	}
	say("| all | | %s | %s | | | |\n\n", grouped(int64(total.Done)), grouped(int64(total.Felt)))
}

// sayControls writes which defects the judge has found.
func sayControls(say func(string, ...any), h history) {
	say("## Seeing that the judge can find something\n\n")
	if len(h.Controls) == 0 {
		say("The negative controls (`make ledger-controls`) have not run yet.\n\n")
		return
	}
	say("`make ledger-controls` puts known defects into the code, one at a time, and runs a short soak of each with the same\n" +
		"judge, under harms that can show the defect.\n\n")
	type run struct{ date, commit, how string }
	var runs []run
	found, made := map[run]int{}, map[run]int{}
	for _, c := range h.Controls {
		r := run{c.Date, c.Commit, c.How}
		if !slices.Contains(runs, r) {
			runs = append(runs, r)
		}
		made[r]++
		if c.Found {
			found[r]++
		}
	}
	for i, r := range runs {
		say("%d. On %s, at commit `%s`, it found %d of %d", i+1, r.date, r.commit, found[r], made[r])
		if r.how != "" {
			say(", %s", r.how)
		}
		say(".\n")
	}
	say("\n| Defect | At | Harms | Minutes | Found | The judge said, or else which test finds it |\n|---|---|---|---|---|---|\n")
	var many []string // lists of harms that are too long for the table
	for _, c := range h.Controls {
		said := c.Said
		if !c.Found && c.By != "" {
			said = "`" + c.By + "` finds it"
			if c.Hidden != "" {
				said += "; here " + c.Hidden
			}
		}
		names := strings.Split(c.Harms, "|")
		inflicted := inWords(names)
		if len(names) > 3 {
			if !slices.Contains(many, inflicted) {
				many = append(many, inflicted)
			}
			inflicted = fmt.Sprintf("many (%d)", slices.Index(many, inWords(names))+1)
		}
		say("| %s | %d | %s | %s | %s | %s |\n", c.Name, slices.Index(runs, run{c.Date, c.Commit, c.How})+1, inflicted, c.Minutes,
			map[bool]string{true: "yes", false: "no"}[c.Found], said)
	}
	say("\n")
	for i, inflicted := range many {
		say("Many (%d): %s.\n\n", i+1, inflicted)
	}
}

// inWords returns the descriptions of harms.
func inWords(names []string) string {
	var all []string
	for _, name := range names {
		if i := slices.IndexFunc(harms, func(h harm) bool { return h.name == name }); i >= 0 {
			name = harms[i].what
		}
		all = append(all, name)
	}
	return strings.Join(all, "; ")
}

// percentile returns the smallest of sorted milliseconds that p percent of them do not exceed.
func percentile(sorted []int64, p float64) string {
	if len(sorted) == 0 {
		return "–"
	}
	at := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return fmt.Sprintf("%.2f s", (time.Duration(sorted[max(at, 0)]) * time.Millisecond).Seconds())
}

// grouped returns a number with commas.
func grouped(n int64) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// findings returns date, seed and text of what the simulation's page lists.
func findings(simulation string) (rows [][]string) {
	_, section, _ := strings.Cut(simulation, "## What it found\n")
	for line := range strings.SplitSeq(section, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) >= 3 && strings.HasPrefix(cells[0], "20") {
			rows = append(rows, cells[:3])
		}
	}
	return rows
}
