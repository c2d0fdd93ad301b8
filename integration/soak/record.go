package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/integration/servers"
)

// record is what one run did and found.
type record struct {
	Date, Commit, Command, Database string
	Seed                            uint64
	Minutes                         float64 // of disturbances
	Rate, Workers                   int
	Versions                        map[string]string
	Figures                         map[string]int64
	Harms                           map[string]tally
	LeftOut                         []string `json:",omitempty"`
}

// promises are the figures that must be 0.
var promises = []string{"pending", "missing", "skipped", "doubled", "misjudged", "unknown", "deleted_open",
	"steps_missing", "steps_misordered", "steps_doubled", "steps_excess", "published_missing", "published_unknown", "published_misordered",
	"committed_backwards", "committed_past_unstored", "uncommitted", "unsettled", "worker_failures"}

// broken returns the promises that were not kept, with their figures.
func (r record) broken() (all []string) {
	for _, name := range promises {
		if n := r.Figures[name]; n != 0 {
			all = append(all, fmt.Sprintf("%s %d", name, n))
		}
	}
	if r.Figures["accepted"] != r.Figures["produced"] {
		all = append(all, fmt.Sprintf("accepted %d of %d", r.Figures["accepted"], r.Figures["produced"]))
	}
	return all
}

// idle returns what did not happen, so that nothing was proved about it.
func (r record) idle() (all []string) {
	for _, name := range []string{"produced", "deleted", "published", "offset_commits"} {
		if r.Figures[name] == 0 {
			all = append(all, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Harms)) {
		if r.Harms[name].Felt == 0 {
			all = append(all, name)
		}
	}
	return all
}

// print prints one line for each figure and each disturbance.
func (r record) print() {
	for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
		fmt.Printf("%s: %d\n", name, r.Figures[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.Harms)) {
		fmt.Printf("%s: done %d, felt %d\n", name, r.Harms[name].Done, r.Harms[name].Felt)
	}
}

// control is a defect that was put into the code on purpose, and what the soak said about it.
type control struct {
	Name    string
	Found   bool
	Said    string `json:",omitempty"`
	By      string `json:",omitempty"` // the test that finds it without the soak
	Hidden  string `json:",omitempty"` // why the soak does not find it
	Harms   string `json:",omitempty"` // of its soak
	Minutes string `json:",omitempty"`
	Seconds float64
	Date    string
	Commit  string
	How     string `json:",omitempty"` // its soak ran, if not by make ledger-controls
}

// history is what the page shows: all runs, and the last check of each control.
type history struct {
	Runs     []record
	Controls []control `json:",omitempty"`
}

// readHistory reads a file that may not exist yet.
func readHistory(path string) (h history, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &h)
	}
	if err != nil {
		return h, fmt.Errorf("read %s: %w", path, err)
	}
	return h, nil
}

// The files of the ledger, relative to the directory of this module, and the page that lists what was found before.
const (
	historyFile    = "soak/ledger.json"
	pageFile       = "../docs/ledger.md"
	simulationFile = "../docs/simulation.md"
)

// publish writes the history and its page.
func publish(h history) error {
	content, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	simulation, err := os.ReadFile(simulationFile)
	if err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	if err := os.WriteFile(historyFile, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	if err := os.WriteFile(pageFile, []byte(page(h, string(simulation))), 0o644); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	return nil
}

// readControls reads the events of go test -json that the mutants print.
func readControls(events *json.Decoder) (all []control, err error) {
	said := map[string]string{}
	for events.More() {
		var e struct {
			Action, Test, Output, By, Hidden string
			Elapsed                          float64
			Env                              []string
		}
		if err := events.Decode(&e); err != nil {
			return nil, fmt.Errorf("read the controls: %w", err)
		}
		c := control{Name: e.Test, By: e.By, Hidden: e.Hidden, Seconds: e.Elapsed}
		for _, variable := range e.Env {
			switch name, value, _ := strings.Cut(variable, "="); name {
			case "HARMS":
				c.Harms = value
			case "MINUTES":
				c.Minutes = value
			}
		}
		switch e.Action {
		case "output":
			said[e.Test] = strings.TrimSpace(e.Output)
		case "pass": // the short soak has failed, which may also be for want of harm
			c.Found, c.Said = said[e.Test] != "", said[e.Test]
			all = append(all, c)
		case "fail":
			all = append(all, c)
		case "skip":
			return nil, fmt.Errorf("read the controls: %s: %s", e.Test, said[e.Test])
		}
	}
	if len(all) == 0 {
		return nil, errors.New("read the controls: there is none")
	}
	return all, nil
}

// commit returns the commit of the working tree, and says if the tree differs from it in more than the ledger.
func commit(ctx context.Context) (string, error) {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("which commit this is: %w", err)
	}
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ":/", ":(exclude)"+historyFile,
		":(exclude)"+pageFile).Output()
	if err != nil {
		return "", fmt.Errorf("what has changed since the commit: %w", err)
	}
	name := strings.TrimSpace(string(head))
	if len(changed) > 0 {
		name += ", with uncommitted changes"
	}
	return name, nil
}

// versions returns the versions of everything that takes part.
func (w *world) versions() (map[string]string, error) {
	var server string
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	query := "SELECT version()"
	if w.product.name == sqlite {
		query = "SELECT sqlite_version()"
	}
	if err := w.db.QueryRowContext(ctx, query).Scan(&server); err != nil {
		return nil, fmt.Errorf("version of %s: %w", w.product.title, err)
	}
	if fields := strings.Fields(server); fields[0] == "PostgreSQL" {
		server = fields[1] // PostgreSQL names itself first, and its compiler after
	}
	all := map[string]string{"Go": strings.TrimPrefix(runtime.Version(), "go"), w.product.title: server,
		"Kafka": servers.KafkaVersion}
	build, _ := debug.ReadBuildInfo()
	names := map[string]string{"github.com/segmentio/kafka-go": "kafka-go", "gorm.io/gorm": "GORM",
		"github.com/jackc/pgx/v5": "pgx", "github.com/go-sql-driver/mysql": "go-sql-driver",
		"modernc.org/sqlite": "modernc.org/sqlite"}
	for _, module := range build.Deps {
		if name := names[module.Path]; name != "" {
			all[name] = strings.TrimPrefix(module.Version, "v")
		}
	}
	return all, nil
}

// today is the date of a record.
func today() string { return time.Now().UTC().Format(time.DateOnly) }
