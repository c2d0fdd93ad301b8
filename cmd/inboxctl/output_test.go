package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/ops"
)

// TestLostOutputFailsEveryCommand runs every command with its standard output on a full
// disk. A script must not take a lost result for an empty one.
func TestLostOutputFailsEveryCommand(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		testenv.LeaveOutFor(t, fmt.Sprintf("a full disk (%v)", err))
	}
	t.Cleanup(func() { require.NoError(t, full.Close()) })
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "1", "2", "3", "4", "5")
		r.halted()
		r.removed()
		first, second, third := r.reject(1, nil, nil), r.reject(2, nil, nil), r.reject(3, nil, nil)
		inboxtest.Accept(t, r.ib, "claimed")
		inboxtest.Exec(t, r.d.DB,
			`UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE message_id = 'claimed'`)
		inboxtest.Accept(t, r.ib, "later")
		inboxtest.Accept(t, r.ib, "called")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = created_at,
			worker_id = '00000000-0000-7000-8000-000000000001' WHERE message_id = 'called'`)
		operator, err := r.ib.Ops()
		require.NoError(t, err)
		asked, err := operator.RequestCleanup(t.Context(), "alice")
		require.NoError(t, err)
		inboxtest.Exec(t, r.d.DB, `DELETE FROM inbox_handler_statuses WHERE message_id = '3' AND handler_key = ?`, fine)
		go func() { // as a running process does
			for routine.Sleep(t.Context(), time.Millisecond) {
				_ = operator.ServeRequests(t.Context(), "a process", nil, ops.ActionBackfill)
			}
		}()
		status := func(id string) string { return r.status(id).ID }
		commands := [][]string{
			{}, {"help"}, {"help", "retry"}, {"version"}, {"completion", "bash"}, {"completion", "zsh"}, {"completion", "fish"},
			{"completion", "powershell"},
			{"migrate", "print", "--dialect", "postgres"}, {"grants", "--reader", "r"}, {"migrate", "status"},
			{"migrate", "up", "--inbox", "test"},
			{"status"}, {"list"}, {"list", "--count"}, {"list", "--message", "none"}, {"show", "1"}, {"failures"},
			{"handlers"}, {"handler", failing},
			{"consumers"}, {"progress"}, {"workers"}, {"locks"}, {"gaps"}, {"markers", "1"}, {"audit"},
			{"rejected", "list"}, {"rejected", "show", first},
			{"retry", status("1")}, {"discard", status("2")}, {"retry", "--matching", "--message", "3", "--yes"},
			{"reschedule", status("later"), "--at", "24h"},
			{"rerun", "5", "--handler", fine, "--reason", "x", "--yes"}, {"release", "claimed", "--handler", fine, "--yes"},
			{"replay", "5", "--yes", "--wait", "0"}, {"backfill", fine, "--from", "1h", "--yes"},
			{"read-again", "c", "--topic", "t", "--from", "1h", "--yes", "--wait", "0"},
			{"cleanup", "--application", "--yes", "--wait", "0"}, {"request", asked},
			{"cancel", "called", "--handler", fine, "--yes", "--wait", "0"},
			{"delete", "4", "--confirm", "4"},
			{"rejected", "accept", third}, {"rejected", "delete", second, "--confirm", second},
			{"resume-partition", "c", "orders/1@7"}, {"skip-record", "c", "orders/1@7", "--yes"},
			{"forget-topic", "c", "g", "removed", "--yes"},
			{"pause", failing}, {"resume", failing}, {"cleanup", "--retention", "1h", "--yes"},
			{"dashboard", "--listen", "127.0.0.1:0"},
		}
		covered := map[string]bool{"inboxctl migrate partition": true, "inboxctl migrate unpartition": true}
		if strings.HasSuffix(t.Name(), "/postgres") { // which alone has partitions, that the tables' owner makes
			owned := maps.Clone(r.env)
			owned[dsnVariable] = r.d.DSN()
			for _, layout := range []string{"unpartition", "partition"} {
				var errOut bytes.Buffer
				code := run(t.Context(), []string{"migrate", layout}, system{in: strings.NewReader(""), out: full, errOut: &errOut,
					getenv: func(name string) string { return owned[name] }})
				require.Equal(t, exitFailed, code)
				require.Contains(t, errOut.String(), "print the result: ")
			}
		}
		for _, args := range commands {
			for _, format := range []string{"table", "json", "yaml"} {
				if format != "table" && changes(args) {
					continue
				}
				var errOut bytes.Buffer
				ctx, cancel := context.WithTimeout(t.Context(), inboxtest.Patience)
				code := run(ctx, append([]string{"-o", format}, args...),
					system{in: strings.NewReader(""), out: full, errOut: &errOut,
						getenv: func(name string) string { return r.env[name] }})
				require.NoError(t, ctx.Err(), "%v ends by itself", args)
				cancel()
				require.Equal(t, exitFailed, code, "%v -o %s: %s", args, format, errOut.String())
				require.Contains(t, errOut.String(), "print the result: ", "%v -o %s", args, format)
				require.Equal(t, 1, strings.Count(errOut.String(), "print the result"), "%v -o %s", args, format)
			}
			cmd, _, err := newRoot(&app{}).Find(args)
			require.NoError(t, err)
			covered[cmd.CommandPath()] = true
		}
		each(newRoot(&app{}), func(cmd *cobra.Command) {
			if cmd.Runnable() && !cmd.HasSubCommands() && cmd.Name() != "help" {
				require.True(t, covered[cmd.CommandPath()], "%s is not in the table", cmd.CommandPath())
			}
		})
		require.False(t, r.status("1").IsPoisoned, "the action is done and audited")
		require.Contains(t, strings.Join(r.audit(), "\n"), "alice retry")
	})
}

// changes reports whether a command can be run only once.
func changes(args []string) bool {
	line := strings.Join(args, " ")
	for _, once := range []string{"retry", "discard", "delete", "rejected accept", "rejected delete", "forget-topic",
		"rerun", "release", "backfill"} {
		if strings.HasPrefix(line, once+" ") {
			return true
		}
	}
	return false
}

func TestLostOutputKeepsThePartialSuccessExitCode(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		testenv.LeaveOutFor(t, fmt.Sprintf("a full disk (%v)", err))
	}
	t.Cleanup(func() { require.NoError(t, full.Close()) })
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "1")
		var errOut bytes.Buffer
		code := run(t.Context(), []string{"retry", r.status("1").ID, "00000000-0000-7000-8000-000000000000"},
			system{in: strings.NewReader(""), out: full, errOut: &errOut,
				getenv: func(name string) string { return r.env[name] }})
		require.Equal(t, exitPartly, code, errOut.String())
		require.Contains(t, errOut.String(), "print the result: ")
	})
}
