package main

import "github.com/spf13/cobra"

// unknownCommand is the Args function of commands that only contain other commands.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = ", did you mean " + near[0] + "?"
	}
	return misuse("unknown command %q%s", args[0], hint)
}

func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// noArgs and oneArg replace cobra's functions of this kind. Their errors say what the command
// expects, where cobra's say how many arguments it got.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return misuse("unexpected argument %q", args[0])
	}
	return nil
}

func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 || args[0] == "":
			return misuse("the %s is missing", what)
		case len(args) > 1:
			return misuse("unexpected argument %q", args[1])
		}
		return nil
	}
}
