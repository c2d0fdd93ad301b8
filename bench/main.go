// Command bench measures this module beside its peers, in one run on one
// PostgreSQL of its own, and says how it compares.
//
//	go run -C bench .                  everything; writes nothing but to its output
//	go run -C bench . -quick           the first figure of each group, in under a minute
//	go run -C bench . -only process    one group; process/inbox is one variant of it
//	go run -C bench . -json FILE       all measures, for programs
//	go run -C bench . -profiles DIR    a CPU profile of each variant, for go tool pprof
//	go run -C bench . -docs            also writes docs/benchmarks.md; with -only, these groups in it
//	go run -C bench . -messages N      the group "large" alone, beside N completed messages, at 1 KB of disk each
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/gorm-inbox/inbox/bench/groups"
	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/bench/workers"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == workers.Command {
		if err := groups.Worker(context.Background(), os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench: worker:", err)
			os.Exit(1)
		}
		return
	}
	var (
		only   = flag.String("only", "", "measure these groups alone, or group/variant, separated by semicolons")
		quick  = flag.Bool("quick", false, "the first figure of each group, one round, less work")
		rounds = flag.Int("rounds", 3, "how often each variant is measured")
		toJSON = flag.String("json", "", "write all measures to this file")
		docs   = flag.Bool("docs", false, "write docs/benchmarks.md; with -only, these groups in it")
		large  = flag.Int("messages", 0, "measure the group \"large\" alone, beside so many completed messages")
		lab    = &trial.Lab{Log: os.Stderr}
	)
	flag.StringVar(&lab.Profiles, "profiles", "", "write a CPU profile of each variant to this directory")
	flag.Parse()
	lab.Quick, lab.Rounds = *quick, *rounds
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, lab, *only, *large, *toJSON, *docs); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, lab *trial.Lab, only string, large int, toJSON string, docs bool) (err error) {
	if lab.Quick {
		lab.Rounds = 1
	}
	if docs && (lab.Quick || only == "" && lab.Rounds < 3 || strings.Contains(only, "/")) {
		return errors.New("-docs is for whole groups, and at least 3 rounds of all of them")
	}
	all := groups.All()
	if large != 0 {
		if large < 1_000_000 || only != "" {
			return fmt.Errorf("-messages %d: must be a million or more, and without -only", large)
		}
		only, all = "large", []trial.Group{groups.Large(large)}
	}
	chosen, err := choose(all, only, lab.Quick)
	if err != nil {
		return err
	}
	s, err := server.Start()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	lab.Server = s
	var results []*trial.Result
	for _, g := range chosen {
		r, err := lab.Run(ctx, g)
		if errors.Is(err, trial.ErrLeftOut) && !docs {
			fmt.Fprintln(os.Stderr, "LEFT OUT:", err)
			continue
		}
		if err != nil {
			return err
		}
		results = append(results, r)
		printTable(os.Stdout, r)
	}
	if err := printLines(os.Stdout, results); err != nil {
		return err
	}
	about, err := describe(ctx, s, lab.Rounds)
	if err != nil {
		return err
	}
	if toJSON != "" {
		if err := writeJSON(toJSON, about, results); err != nil {
			return err
		}
	}
	switch {
	case !docs:
		return nil
	case only != "":
		return mergeDocs(about, results)
	default:
		return writeDocs(about, results)
	}
}

// asked reduces a group to the requested variants. A group that is reduced to some variants has no
// lines.
func asked(g trial.Group, only string) (trial.Group, bool) {
	if only == "" {
		return g, true
	}
	var some []trial.Variant
	for _, one := range strings.Split(only, ";") {
		group, variant, single := strings.Cut(one, "/")
		if group != g.Name {
			continue
		}
		if !single {
			return g, true
		}
		for _, v := range g.Variants {
			if v.Name == variant {
				some = append(some, v)
			}
		}
	}
	g.Variants, g.Lines = some, nil
	return g, len(some) > 0
}

func choose(all []trial.Group, only string, quick bool) ([]trial.Group, error) {
	var chosen []trial.Group
	for _, g := range all {
		if g, asked := asked(g, only); asked {
			if quick && len(g.Lines) == 0 {
				continue
			}
			if quick {
				g = g.First()
			}
			chosen = append(chosen, g)
		}
	}
	if len(chosen) == 0 {
		var names []string
		for _, g := range all {
			names = append(names, g.Name)
		}
		return nil, fmt.Errorf("-only %q: no such group; there are %s", only, strings.Join(names, ", "))
	}
	return chosen, nil
}
