package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// minWatch is the shortest interval of --watch, so that watching does not load the database.
const minWatch = time.Second

// watchable adds --watch to a command that only reads and leaves no audit row.
func watchable(a *app, cmd *cobra.Command) *cobra.Command {
	var every time.Duration
	cmd.Flags().DurationVar(&every, "watch", 0, "repeat it this often, at least every second, until Ctrl-C")
	once := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("watch") {
			return once(cmd, args)
		}
		if every < minWatch {
			return misuse("--watch = %v: must be %v or more", every, minWatch)
		}
		return a.watch(cmd, every, func() error { return once(cmd, args) })
	}
	return cmd
}

// watch repeats a command until its context ends, which is no error, or until it fails.
func (a *app) watch(cmd *cobra.Command, every time.Duration, once func() error) error {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	ctx := cmd.Context()
	for first := true; ; first = false {
		a.beginResult(first)
		if err := once(); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// beginResult begins the next result: on a cleared screen, or after the last one.
func (a *app) beginResult(first bool) {
	switch {
	case a.output == "yaml":
		fmt.Fprintln(a.out, "---")
	case a.output != "table":
	case a.results.isTerminal():
		fmt.Fprint(a.out, "\x1b[H\x1b[2J\x1b[3J")
	case !first:
		fmt.Fprintf(a.out, "\n%s\n", instant(a.now().Truncate(time.Second)))
	}
}

// isTerminal reports whether results are read by a person and can be replaced.
func (r *results) isTerminal() bool {
	file, ok := r.w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
