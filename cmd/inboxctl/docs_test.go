package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

const page = "../../docs/inboxctl.md"

func TestReferenceIsTheCommandsHelp(t *testing.T) {
	want := reference(newRoot(&app{}), func(name string) string {
		text, err := os.ReadFile("testdata/" + name + ".txt")
		require.NoError(t, err)
		return string(text)
	})
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, want, string(text), "go test . -update rewrites %s", page)
}

// reference generates the CLI reference page from the commands' help. sample is what a command prints in
// TestTablesForPeople.
func reference(root *cobra.Command, sample func(name string) string) string {
	var out strings.Builder
	out.WriteString("# inboxctl: the reference\n\n")
	block := func(text string) { fmt.Fprintf(&out, "```text\n%s\n```\n\n", strings.TrimRight(text, "\n")) }
	out.WriteString("Each section is the help of a command (`inboxctl help COMMAND`). Build inboxctl in a clone of the repository, with or\n" +
		"without a C compiler: `go build -C cmd/inboxctl -o /usr/local/bin/inboxctl .`\n\n")
	block(root.Long)
	out.WriteString("| command | what it does |\n|---|---|\n")
	each(root, func(cmd *cobra.Command) {
		if cmd != root && cmd.Runnable() && !cmd.HasSubCommands() && cmd.Name() != "help" {
			fmt.Fprintf(&out, "| [`%s`](#%s) | %s |\n", cmd.CommandPath(), strings.ReplaceAll(cmd.CommandPath(), " ", "-"),
				cmd.Short)
		}
	})
	out.WriteString("\n## Flags of every command\n\n")
	block(root.PersistentFlags().FlagUsages())
	for _, cmd := range root.Commands() {
		if cmd.IsAdditionalHelpTopicCommand() {
			fmt.Fprintf(&out, "## %s\n\n", cmd.Short)
			block(cmd.Long)
		}
	}
	each(root, func(cmd *cobra.Command) {
		if cmd == root || !cmd.Runnable() || cmd.Name() == "help" {
			return
		}
		fmt.Fprintf(&out, "## %s\n\n%s.\n\n", cmd.CommandPath(), cmd.Short)
		block(cmd.Long)
		if !cmd.HasSubCommands() {
			block(cmd.UseLine() + "\n\n" + ownFlags(cmd))
		}
		fmt.Fprintf(&out, "```sh\n%s\n```\n\n", strings.ReplaceAll(strings.TrimPrefix(cmd.Example, "  "), "\n  ", "\n"))
		if slices.Contains([]string{"inboxctl status", "inboxctl handler"}, cmd.CommandPath()) {
			out.WriteString("It prints, for example:\n\n")
			block(sample(cmd.Name()))
		}
	})
	return strings.TrimRight(out.String(), "\n") + "\n"
}

func ownFlags(cmd *cobra.Command) string {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			own.AddFlag(f)
		}
	})
	return own.FlagUsages()
}

// each visits a command and all of its subcommands.
func each(cmd *cobra.Command, visit func(cmd *cobra.Command)) {
	visit(cmd)
	for _, child := range cmd.Commands() {
		each(child, visit)
	}
}

func splitLines(text string) []string { return strings.Split(text, "\n") }

// requireExamplesRun checks the examples of a command: each inboxctl line must name an existing
// command and existing flags, with as many arguments as the command takes.
func requireExamplesRun(t *testing.T, of *cobra.Command) {
	t.Helper()
	for _, line := range splitLines(of.Example) {
		_, rest, found := strings.Cut(line, "inboxctl ")
		require.True(t, found, line)
		for _, end := range []string{" | ", " && ", ")", " > "} {
			rest, _, _ = strings.Cut(rest, end)
		}
		cmd, args, err := newRoot(&app{}).Find(words(rest))
		require.NoError(t, err, line)
		require.True(t, cmd.Runnable(), line)
		require.NoError(t, cmd.ParseFlags(args), line)
		if cmd.Args != nil {
			require.NoError(t, cmd.Args(cmd, cmd.Flags().Args()), line)
		}
	}
}

// words splits a command line at spaces, except inside quotes.
func words(line string) []string {
	var out []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}
