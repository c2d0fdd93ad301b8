package main

import "github.com/spf13/cobra"

func newCompletion() *cobra.Command {
	return &cobra.Command{
		Use: "completion SHELL", Short: "Print a script that completes commands in your shell",
		Long: `Prints a shell script for the completion of commands, flags and their values. The
shell is bash, zsh, fish or powershell.`,
		Example: `  source <(inboxctl completion bash)
  inboxctl completion zsh > "${fpath[1]}/_inboxctl"
  inboxctl completion fish | source`,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		Args:      oneArg("shell"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(out)
			}
			return misuse("shell %q is unknown: must be bash, zsh, fish or powershell", args[0])
		},
	}
}
