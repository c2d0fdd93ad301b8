package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/ops"
)

func TestExitCodeOfEachKindOfError(t *testing.T) {
	for want, errs := range map[int][]error{
		exitDone:     {nil},
		exitFailed:   {errors.New("x"), ops.ErrNotAudited},
		exitMisuse:   {misuse("x"), ops.ErrBadInput},
		exitNotFound: {ops.ErrNotFound},
		exitRefused: {ops.ErrStale, ops.ErrNotPoisoned, ops.ErrPaused, ops.ErrProcessing, ops.ErrNeedsApplication,
			ops.ErrReplayOff, errNotConfirmed, cleanup.ErrLeaseHeld},
		exitPartly: {&codedError{exitPartly, ops.ErrNotFound}},
	} {
		for _, err := range errs {
			if err != nil {
				err = fmt.Errorf("wrapped: %w", err)
			}
			require.Equal(t, want, exitCode(err), "%v", err)
		}
	}
}

func TestMisuseExitsWith2AndNamesTheHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"nope"}, {"rejected", "nope"}, {"migrate", "nope"}, {"status", "x"}, {"--nope"}, {"status", "--nope"},
		{"status", "-o", "xml"}, {"status", "--watch", "0.5s"}, {"list", "--export", "xml"}, {"list", "--export", "csv", "--watch", "5s"}, {"status", "--timeout", "0s"},
		{"status", "--timeout", "x"}, {"show"}, {"show", ""}, {"show", "a", "b"}, {"delete"},
		{"rejected", "show"}, {"rejected", "delete"},
		{"migrate", "up"}, {"migrate", "print"}, {"migrate", "print", "--dialect", "oracle"},
		{"migrate", "print", "--dialect", "sqlite", "--schema", "s"},
		{"migrate", "print", "--dialect", "postgres", "--prefix", "x;"}, {"status", "--dsn", "file:x", "--prefix", "x;"},
		{"completion"}, {"completion", "tcsh"}, {"version", "x"},
		{"list", "--from", "soon"}, {"cleanup"}, {"pause"}, {"resume"}, {"backfill"}, {"read-again"}, {"retry"}, {"discard"},
	} {
		out := runWith(t, t.Context(), map[string]string{actorVariable: "alice"}, "", args...)
		require.Equal(t, exitMisuse, out.code, "%v: %s", args, out.errOut)
		require.Empty(t, out.out, "%v", args)
		require.Contains(t, out.errOut, "--help", "%v", args)
	}
	require.Contains(t, runWith(t, t.Context(), nil, "", "statsu").errOut, "did you mean status?")
}

func TestCommandsWithoutDatabaseWorkWithoutOne(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{}, {"--help"}, {"--version"}, {"help"}, {"help", "json"}, {"exit-codes"}, {"rejected"}, {"migrate"}, {"version"},
		{"version", "-o", "json"},
		{"completion", "bash"}, {"completion", "zsh"}, {"completion", "fish"}, {"completion", "powershell"},
		{"migrate", "print", "--dialect", "sqlite"},
		{"migrate", "print", "--dsn", "postgres://x:y@h/d"}, {"migrate", "print", "--dialect", "postgres", "-o", "json"},
		{"__complete", "list", "--state", ""},
	} {
		out := runWith(t, t.Context(), map[string]string{actorVariable: "alice"}, "", args...)
		require.Zero(t, out.code, "%v: %s", args, out.errOut)
		require.NotEmpty(t, out.out, "%v", args)
	}
}

// TestEachCommandHasHelpAndExamples checks that each command has a description and an example that works,
// because operators may have nothing but the help.
func TestEachCommandHasHelpAndExamples(t *testing.T) {
	root := newRoot(&app{})
	each(root, func(cmd *cobra.Command) {
		if !cmd.Runnable() || cmd.Name() == "help" {
			return
		}
		require.NotEmpty(t, cmd.Short, cmd.CommandPath())
		require.Greater(t, len(cmd.Long), len(cmd.Short), cmd.CommandPath())
		require.Contains(t, cmd.Example, cmd.CommandPath(), "an example of %s", cmd.CommandPath())
		for _, line := range splitLines(cmd.Long + "\n" + cmd.Example) {
			require.LessOrEqual(t, widthOf(line), 86, "%s: %q", cmd.CommandPath(), line)
			requireHarmless(t, line)
		}
		requireExamplesRun(t, cmd)
	})
}
