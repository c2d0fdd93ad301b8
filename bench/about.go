package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/integration/servers"
)

// about describes what was measured, and on which machine.
type about struct {
	Date       string
	CPU        string
	Cores      int
	Memory     string
	System     string
	Go         string
	PostgreSQL string
	Kafka      string
	Redis      string // empty if it is not installed
	Settings   map[string]string
	Rounds     int
	// Versions are the versions of the peers and drivers, by module.
	Versions map[string]string
}

func describe(ctx context.Context, s *server.Server, rounds int) (about, error) {
	version, err := s.Version(ctx)
	if err != nil {
		return about{}, err
	}
	a := about{Date: time.Now().UTC().Format(time.DateOnly), CPU: processor(), Cores: runtime.NumCPU(),
		Go:     runtime.Version(),
		Memory: memory(), System: runtime.GOOS + "/" + runtime.GOARCH,
		PostgreSQL: version, Kafka: servers.KafkaVersion, Redis: redisVersion(ctx), Settings: server.Settings, Rounds: rounds,
		Versions: map[string]string{}}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			for _, peer := range []string{"github.com/riverqueue/river", "github.com/ThreeDotsLabs/watermill-sql/v4",
				"github.com/vgarvardt/gue/v5", "github.com/jackc/pgx/v5",
				"github.com/segmentio/kafka-go", "github.com/redis/go-redis/v9", "github.com/mattn/go-sqlite3",
				"modernc.org/sqlite", "gorm.io/gorm"} {
				if d.Path == peer {
					a.Versions[peer] = d.Version
				}
			}
		}
	}
	return a, nil
}

// redisVersion returns the version of the redis-server on the PATH, which prints "Redis server
// v=7.0.15 sha=…".
func redisVersion(ctx context.Context) string {
	output, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return ""
	}
	for _, word := range strings.Fields(string(output)) {
		if version, ok := strings.CutPrefix(word, "v="); ok {
			return version
		}
	}
	return ""
}

// memory returns the machine's memory in GiB.
func memory() string {
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(content)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "MemTotal: %f kB", &kib); err == nil {
			return fmt.Sprintf("%.0f GiB", kib/(1<<20))
		}
	}
	return ""
}

func processor() string {
	content, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(content)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(name), ":"))
		}
	}
	return runtime.GOARCH
}

func writeJSON(path string, a about, results []*trial.Result) error {
	type group struct {
		Name, About, Unit string
		Rows              []row
		Lines             map[string]float64
		Measures          map[string][]trial.Measure
	}
	out := struct {
		About  about
		Groups []group
	}{About: a}
	for _, r := range results {
		g := group{Name: r.Group.Name, About: r.Group.About, Unit: r.Group.Unit, Rows: rowsOf(r), Lines: map[string]float64{},
			Measures: r.Measures}
		for _, line := range r.Group.Lines {
			value, err := line.Of(r)
			if err != nil {
				return err
			}
			g.Lines[line.Name] = value
		}
		out.Groups = append(out.Groups, g)
	}
	content, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}
