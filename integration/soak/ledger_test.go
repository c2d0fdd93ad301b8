package main

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the pages")

// kept is a record of a run in which everything happened and no promise was broken.
func kept() record {
	r := record{Date: "2026-01-02", Commit: "0123abcd", Command: "go run -C integration ./soak -page", Database: "PostgreSQL",
		Seed: 7, Minutes: 2.26, Rate: 150, Workers: 2, Versions: map[string]string{"Go": "1.26.0", "PostgreSQL": "15.1"},
		Figures: map[string]int64{"produced": 12345, "accepted": 12345, "deleted": 9, "published": 8, "offset_commits": 7,
			"reruns": 21, "published_again": 4},
		Harms: map[string]tally{"worker_killed": {Done: 12, Felt: 11, Recoveries: []int64{1600, 1700, 9000}},
			"database_killed": {Done: 2, Felt: 1, Recoveries: []int64{120}}},
		LeftOut: []string{"disk_full"}}
	return r
}

func TestPageShowsWhatRan(t *testing.T) {
	second := kept()
	second.Seed, second.Minutes, second.Harms = 8, 60, map[string]tally{"worker_killed": {Done: 1000}}
	second.Figures = map[string]int64{"produced": 10, "accepted": 10, "missing": 3, "steps_misordered": 2, "unsettled": 1}
	golden(t, "testdata/ledger.md", page(history{Runs: []record{kept(), second}, Controls: []control{
		{Name: "loses", Found: true, Said: "missing 3", By: "TestLoss", Harms: "worker_killed|broker_killed|topic_recreated|commit_late", Minutes: "2",
			Date: "2026-01-03", Commit: "0123abcd"},
		{Name: "survives", By: "TestSurvivor", Hidden: "it heals", Harms: "worker_killed", Minutes: "1", Date: "2026-01-02", Commit: "fedc3210",
			How: "by hand"}}},
		"## What it found\n\n| Date | Seed | Found | Since |\n|---|---|---|---|\n| 2026-01-01 | 118 | a defect | fixed |\n"))
}

func TestPageWithoutRunsSaysSo(t *testing.T) {
	text := page(history{}, "")
	require.Contains(t, text, "None is recorded yet.")
	require.Contains(t, text, "have not run yet.")
	require.NotContains(t, text, "## Harms")
}

// The published page is not edited: it follows from the file that the soak has written.
func TestPublishedPageIsThatOfTheRecordedRuns(t *testing.T) {
	t.Chdir("..") // where the soak runs
	h, err := readHistory(historyFile)
	require.NoError(t, err)
	simulation, err := os.ReadFile(simulationFile)
	require.NoError(t, err)
	require.NotEmpty(t, findings(string(simulation)))
	golden(t, pageFile, page(h, string(simulation)))
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "go test -C integration ./soak -run Page -update")
}

func TestEveryBrokenPromiseIsNamed(t *testing.T) {
	require.Empty(t, kept().broken())
	require.Empty(t, kept().idle())
	for _, name := range promises {
		r := kept()
		r.Figures[name] = 1
		require.Equal(t, []string{name + " 1"}, r.broken())
	}
	r := kept()
	r.Figures["accepted"]--
	require.Equal(t, []string{"accepted 12344 of 12345"}, r.broken())
}

func TestWhatDidNotHappenIsNamed(t *testing.T) {
	for _, name := range []string{"produced", "deleted", "published", "offset_commits"} {
		r := kept()
		r.Figures[name] = 0
		require.Equal(t, []string{name}, r.idle())
	}
	r := kept()
	r.Harms["failover"] = tally{Done: 3}
	require.Equal(t, []string{"failover"}, r.idle(), "done, and without an effect")
}

// Every promise has a column, so that no page hides a broken one.
func TestEveryPromiseHasAColumn(t *testing.T) {
	columned := map[string]bool{}
	for _, names := range columns {
		for _, name := range names {
			columned[name] = true
		}
	}
	for _, name := range promises {
		require.True(t, columned[name], name)
	}
}

func TestControlsAreReadFromTheMutantsEvents(t *testing.T) {
	read := func(lines ...string) ([]control, error) {
		return readControls(json.NewDecoder(strings.NewReader(strings.Join(lines, "\n"))))
	}
	found, err := read(`{"Action":"output","Test":"loses","Output":"missing 3\n"}`,
		`{"Action":"pass","Test":"loses","Elapsed":90.5,"By":"TestLoss","Env":["MINUTES=1","SEED=1","HARMS=a|b"]}`,
		`{"Action":"pass","Test":"does no harm"}`,
		`{"Action":"output","Test":"survives","Output":"survived: no test noticed\n"}`, `{"Action":"fail","Test":"survives"}`)
	require.NoError(t, err)
	require.Equal(t, []control{
		{Name: "loses", Found: true, Said: "missing 3", By: "TestLoss", Harms: "a|b", Minutes: "1", Seconds: 90.5},
		{Name: "does no harm"}, {Name: "survives"}}, found)
	_, err = read(`{"Action":"skip","Test":"x"}`)
	require.ErrorContains(t, err, "x")
	_, err = read()
	require.ErrorContains(t, err, "there is none")
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	var hundred []int64
	for i := range int64(100) {
		hundred = append(hundred, 1000*(i+1))
	}
	require.Equal(t, "50.00 s", percentile(hundred, 50))
	require.Equal(t, "99.00 s", percentile(hundred, 99))
	require.Equal(t, "100.00 s", percentile(hundred, 100))
	require.Equal(t, "1.00 s", percentile(hundred[:1], 50))
	require.Equal(t, "–", percentile(nil, 50))
}

// A disturbance whose effect was not seen is counted as done, and its time is no recovery.
func TestDisturbanceIsFeltOnlyIfItsEffectWasSeen(t *testing.T) {
	felt := func(seen bool) func() (bool, time.Duration) {
		return func() (bool, time.Duration) { return seen, 3 * time.Second }
	}
	cells := []cell{
		{name: "refused", do: func(time.Duration) outcome { return outcome{} }},
		{name: "unseen", do: func(time.Duration) outcome { return outcome{true, felt(false)} }},
		{name: "seen", do: func(time.Duration) outcome { return outcome{true, felt(true)} }},
	}
	m := newMatrix([]track{{cells: cells}})
	for _, c := range cells {
		require.Equal(t, c.name != "refused", m.inflict(c, 0))
	}
	m.judging.Wait()
	require.Equal(t, map[string]tally{"refused": {}, "unseen": {Done: 1}, "seen": {1, 1, []int64{3000}}}, m.tallies())
}

func TestAttemptsAreFoundByTheTimeInWhichTheyWereMade(t *testing.T) {
	var w watch
	at := func(second int) time.Time { return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC) }
	disk := errors.New("could not extend file (SQLSTATE 53100)")
	w.note(attempt{at(1), at(2), nil})
	w.note(attempt{at(3), at(6), disk})
	w.note(attempt{at(7), at(8), nil})
	found := w.overlapping(at(5), at(7))
	require.Equal(t, []attempt{{at(3), at(6), disk}}, found)
	require.True(t, failed(found[0]) && failedWith("53300", "53100")(found[0]))
	require.False(t, failedWith("53300")(found[0]))
	require.True(t, slowed(attempt{at(1), at(2), nil}))
	require.False(t, slowed(found[0]), "it was not late but refused")
	require.True(t, w.acceptedSince(at(6)))
	require.False(t, w.acceptedSince(at(7)), "an accept that began before proves nothing")
	for range 2 * keptAttempts {
		w.note(attempt{at(9), at(9), nil})
	}
	require.LessOrEqual(t, len(w.attempts), keptAttempts)
}

// Each disturbance has its row on the page, under the name of its cell.
func TestEveryDisturbanceIsOnThePage(t *testing.T) {
	known := map[string]bool{}
	for _, h := range harms {
		require.False(t, known[h.name], h.name)
		known[h.name] = true
	}
	var names []string
	for _, file := range []string{"disturb.go", "postgres.go", "patroni.go", "sqlite.go"} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.SplitSeq(string(source), "\n") {
			for _, part := range strings.Split(line, `{"`)[1:] {
				names = append(names, part[:strings.Index(part, `"`)])
			}
		}
	}
	for _, name := range names {
		require.True(t, known[name], name)
	}
	require.GreaterOrEqual(t, len(names), len(known))
}
