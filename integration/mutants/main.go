// Command mutants proves that tests can fail. It applies known defects, one at a time, to a copy of
// the tree and expects the named test to fail.
//
//	go run ./mutants            all
//	go run ./mutants -run lane  those whose name matches
//	go run ./mutants -part 2/6  every sixth, from the second
//	go run ./mutants -simulate  with the simulation instead of the named tests
//	go run ./mutants -soak      some of them, with a short soak instead of the named tests
//
// Run it in a directory of the git repository. A failure is a defect that no test notices, one that
// does not apply or compile, or a test that fails without any defect. The exit status is then 1. An
// unnoticed defect is left out if tests that might have noticed it were left out because a server
// is missing.
//
// With -json it prints the events of go test -json, with one test for each mutant.
//
// With -simulate each defect has a minute of seeds of the simulation to be noticed in. Those in packages that the
// simulation does not run are left away.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	pattern := flag.String("run", "", "only mutants whose `name` matches this regular expression")
	part := flag.String("part", "1/1", "`k/n`: every n-th mutant, from the k-th")
	jobs := flag.Int("jobs", 1, "how many `n` to check at once; each has its own copy of the tree")
	events := flag.Bool("json", false, "print events as go test -json does")
	simulate := flag.Bool("simulate", false, "look with a minute of the simulation's seeds")
	soak := flag.Bool("soak", false, "look with a short soak, and print what its judge said")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := false, error(nil)
	var selected []mutant
	all := mutants
	if *simulate {
		all = simulated(slices.Concat(mutants, simulationMutants))
	}
	if *soak {
		all = soaked(mutants)
	}
	if selected, err = partOf(all, *part); err == nil {
		ok, err = runAll(ctx, &report{out: os.Stdout, json: *events}, ".", *pattern, max(*jobs, 1), selected)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// runAll prints one line per mutant and a closing one, and reports whether none failed. Each job
// has a copy of the tree.
func runAll(
	ctx context.Context, report *report, directory, pattern string, jobs int, all []mutant,
) (ok bool, err error) {
	selected, err := choose(all, pattern)
	if err != nil {
		return false, err
	}
	queue := make(chan mutant, len(selected))
	for _, m := range selected {
		queue <- m
	}
	close(queue)
	problems := make(chan error, jobs)
	for range jobs {
		go func() { problems <- work(ctx, directory, queue, report) }()
	}
	for range jobs {
		err = errors.Join(err, <-problems)
	}
	if err != nil {
		return false, err
	}
	report.close()
	return report.failed == 0, nil
}

// work checks mutants from the queue in a copy of the tree until the queue is empty.
func work(ctx context.Context, directory string, queue <-chan mutant, report *report) (err error) {
	tree, err := copyTree(ctx, directory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tree.remove()) }()
	baselines := map[string]baseline{} // of each test command, run once
	for m := range queue {
		start := time.Now()
		said, verdict := tree.check(ctx, m, baselines)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		report.note(m, said, verdict, time.Since(start))
	}
	return nil
}

// report counts and prints results. It is safe for concurrent use.
type report struct {
	mu                      sync.Mutex
	out                     io.Writer
	json                    bool
	passed, failed, leftOut int
}

// note prints what became of a mutant, and what the soak's judge said about it, if that was asked.
func (r *report) note(m mutant, said string, verdict error, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	action, word, count := "pass", "caught   ", &r.passed
	switch {
	case errors.As(verdict, new(*leftOut)):
		action, word, count = "skip", "LEFT OUT ", &r.leftOut
	case verdict != nil:
		action, word, count = "fail", "FAILED   ", &r.failed
	}
	*count++
	detail := said
	if verdict != nil {
		detail = verdict.Error() + "\n"
	}
	if action == "fail" {
		detail += "          " + m.Why + "\n"
	}
	if r.json {
		r.event(map[string]any{"Action": "output", "Package": "mutants", "Test": m.Name, "Output": detail})
		ended := map[string]any{"Action": action, "Package": "mutants", "Test": m.Name, "Elapsed": took.Seconds()}
		if m.By != "" {
			ended["By"], ended["Env"], ended["Hidden"] = m.By, m.Test.Env, m.Hidden
		}
		r.event(ended)
		return
	}
	if detail != "" {
		detail = ": " + strings.TrimSuffix(detail, "\n")
	}
	fmt.Fprintf(r.out, "%s %s (%.1fs)%s\n", word, m.Name, took.Seconds(), detail)
}

func (r *report) event(fields map[string]any) {
	line, _ := json.Marshal(fields) // strings and a number: never fails
	fmt.Fprintf(r.out, "%s\n", line)
}

// close prints the counts. With -json it prints none, because the reader of the events counts them.
func (r *report) close() {
	if r.json {
		return
	}
	fmt.Fprintf(r.out, "mutants: %d passed, %d failed, %d left out\n", r.passed, r.failed, r.leftOut)
}

// simulationMutants are defects of SQLite's statements, which the simulation runs. The other tests look for them in
// PostgreSQL's.
var simulationMutants = []mutant{
	{
		Name:    "sqlite: completion ignores the version",
		Why:     "a worker that was given up would complete what another one runs (contract 3.2, 5.10)",
		Package: "internal/store/sqlite",
		In:      "completeSQL",
		Old:     "AND {statuses}.version = c.version AND",
		New:     "AND",
		Test:    test{Package: "./internal/store/sqlite", Run: "^TestSQLite$"},
	},
	{
		Name:    "sqlite: lanes: the next row is claimed before those in front of it are completed",
		Why:     "messages of a lane would run in another order (contract 5.12)",
		Package: "internal/store/sqlite",
		In:      "firstsSQL",
		Old:     "ORDER BY p.sequence, p.id LIMIT 1",
		New:     "ORDER BY p.sequence DESC, p.id LIMIT 1",
		Test:    test{Package: "./internal/store/sqlite", Run: "^TestSQLite$"},
	},
}

// outside are the packages with mutants whose code the simulation does not run.
var outside = []string{"dashboard", "internal/store/postgres", "internal/store/postgres/pgxtx", "internal/store/mysql",
	"internal/store/mysql/mysqldialect", "internal/store/mysql/mysqldialect/migrations"}

// simulated returns the mutants that the simulation may find, with a minute of it as their test.
func simulated(all []mutant) []mutant {
	all = slices.DeleteFunc(slices.Clone(all), func(m mutant) bool { return slices.Contains(outside, m.Package) })
	for i := range all {
		all[i].Test = test{Module: "integration", Package: "./simulation", Run: "^TestSeeds$",
			Env: []string{"MINUTES=1", "SEED=", "KEEP=", "SHRINK=no", "GOMAXPROCS=1"}, Timeout: 3 * time.Minute}
	}
	return all
}

// soakFind is a mutant that a short soak looks for.
type soakFind struct {
	name    string
	harms   string // the disturbances' names, as a regular expression
	minutes string
	rate    string // of messages in a second
	hidden  string // why the soak does not find it, or empty
}

// manyHarms show most defects, in a minute.
const manyHarms = "worker_killed|worker_frozen|rolling_upgrade|database_killed|commit_answers_lost|connections_cut|" +
	"broker_killed|topic_recreated"

// soakFinds are the mutants that a short soak looks for: they lose, double or reorder messages, leave some open, or
// move offsets ahead of acceptance, unless something else prevents that. Some only show under one harm, which others
// would hide, or after Retention.
var soakFinds = []soakFind{
	{"a failed accept is passed over", manyHarms, "1", "100", ""},
	{"offsets are committed before their records are accepted", manyHarms, "1", "100", ""},
	{"a bad record is not kept", manyHarms, "1", "100", ""},
	{"an offset of a deleted log counts for the new one", "commit_late", "1", "40", ""},
	{"a plain status is completed before its handler has run", manyHarms, "1", "100", ""},
	{"a commit of unknown outcome has succeeded", "commits_lost", "1", "40",
		"a worker finds the claim that it does not run, by routine, and releases it: nothing is lost"},
	{"postgres: cleanup deletes what has not completed", "worker_killed|poisoned_retried", "2", "40", ""},
	{"the claims of dead workers are not released", manyHarms, "1", "100", ""},
	{"legacy keys are ignored", "rolling_upgrade|renamed_again", "1", "40", ""},
	{"a transactional status is completed outside its transaction", manyHarms, "1", "100", ""},
	{"a member's failure is not undone", manyHarms, "1", "100", ""},
	{"postgres: lanes: any row of a lane may be claimed", manyHarms, "1", "100", ""},
	{"a lane is not advanced when its first row has ended", manyHarms, "1", "100", ""},
	{"postgres: a run begins although a row before its head is open", "database_slow", "2", "40", ""},
}

// soaked returns the mutants of soakFinds, with a short soak as their test.
func soaked(all []mutant) (selected []mutant) {
	for _, m := range all {
		i := slices.IndexFunc(soakFinds, func(f soakFind) bool { return f.name == m.Name })
		if i < 0 {
			continue
		}
		m.By, m.Hidden = strings.NewReplacer("^", "", "$", "").Replace(m.Test.Run), soakFinds[i].hidden
		m.Test = test{Module: "integration", Package: "./soak", Run: "^TestShortSoakBreaksNoPromise$",
			Env: []string{"MINUTES=" + soakFinds[i].minutes, "SEED=1", "RATE=" + soakFinds[i].rate,
				"HARMS=" + soakFinds[i].harms},
			Timeout: 10 * time.Minute}
		selected = append(selected, m)
	}
	return selected
}

// partOf returns every n-th mutant, from the k-th. The parts 1/n to n/n have all mutants, so that
// consecutive runs can share the work.
func partOf(all []mutant, part string) ([]mutant, error) {
	var k, n int
	if _, err := fmt.Sscanf(part, "%d/%d", &k, &n); err != nil || k < 1 || k > n {
		return nil, fmt.Errorf("-part = %q: must be k/n with 1 <= k <= n", part)
	}
	var selected []mutant
	for i := k - 1; i < len(all); i += n {
		selected = append(selected, all[i])
	}
	return selected, nil
}

// choose returns the mutants that match. It checks the whole table first, so that a pattern does
// not hide a mistake in an entry. Choosing none is an error.
func choose(all []mutant, pattern string) ([]mutant, error) {
	expression, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	names := map[string]bool{}
	var selected []mutant
	for _, m := range all {
		switch {
		case m.Name == "" || m.Why == "" || m.Package == "" || m.In == "" || m.Old == "" || m.Test.Package == "" ||
			m.Test.Run == "":
			return nil, fmt.Errorf("mutant %q: name, why, package, place, old text and test are all required", m.Name)
		case m.Old == m.New:
			return nil, fmt.Errorf("mutant %q: old and new text are the same", m.Name)
		case names[m.Name]:
			return nil, fmt.Errorf("mutant %q is there twice", m.Name)
		}
		names[m.Name] = true
		if expression.MatchString(m.Name) {
			selected = append(selected, m)
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("no mutant matches %q", pattern)
	}
	return selected, nil
}
