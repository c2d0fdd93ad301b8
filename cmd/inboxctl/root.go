package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/secrets"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// app is one run of the program.
type app struct {
	system
	now func() time.Time
	// results is system's out. It remembers whether a result was lost.
	results *results
	// redact is applied before redact.Common; nil for most commands.
	redact redact.Hook

	// The values of the flags that every command has.
	dsn, replicaDSN, schema, prefix, actor, output string
	timeout                                        time.Duration

	replica *gorm.DB // that replicaDSN names; nil without one, and for commands that read the primary
}

// The environment variables that replace flags.
const (
	dsnVariable     = "INBOX_DSN"
	replicaVariable = "INBOX_REPLICA_DSN"
	schemaVariable  = "INBOX_SCHEMA"
	prefixVariable  = "INBOX_PREFIX"
	actorVariable   = "INBOX_ACTOR"
)

const rootLong = `inboxctl inspects and changes an inbox through its tables, whether or not the
application runs. Start with

  export INBOX_DSN='postgres://app@db.example.com/orders'
  inboxctl status

Continue with "inboxctl failures" if something is poisoned, or with "inboxctl
workers" if nothing makes progress. Viewing changes nothing. Each action, and each
view of a message or a rejected record, writes an audit row with the name of the
actor in the same transaction. "inboxctl audit" shows these rows.

Card numbers, passwords, tokens and the like are replaced by [redacted] wherever
they are recognized: in errors, headers, attributes, keys and payloads. Secrets
that only the application can recognize are not replaced.

Every query is bounded. A count may be 10000+, and a list that would have to read
too many rows stops early and says how to continue.`

const applicationHelp = `Channels, handlers and their retentions are in the application's code and not in the
database. So only the application can replay a message, accept a rejected message
again, give a handler that was added later the statuses it lacks, read a topic again,
and clean up by each handler's own retention. "inboxctl replay", "rejected accept",
"backfill", "read-again", "cleanup --application" and "cancel" store a request that a
running process carries out. Where none runs, use Go:

  o, err := ib.Ops(func(o *ops.Options) { o.AllowReplay = true })
  accepted, err := o.Replay(ctx, actor, ops.MessageRef{ID: messageID}, ops.Edit{})
  accepted, err := o.ReAccept(ctx, actor, rejectedID)
  result, err := o.ReAcceptMatching(ctx, actor, filter, ops.Bulk{})
  result, err := o.Backfill(ctx, actor, handlerKey, from, to, ops.Bulk{})
  result, err := o.ReadAgain(ctx, actor, envelope.ReadAgain{Channel: c, Topic: t, From: from})
  deleted, err := o.Cleanup(ctx, actor)

To run failed statuses again use "inboxctl retry".`

const connectingHelp = `Name the database with INBOX_DSN or --dsn. INBOX_DSN is safer, because other users
of the machine can see a command's arguments.

  postgres://user:password@host:5432/database?sslmode=verify-full
  postgresql://…         the same
  host=… user=… password=… dbname=… sslmode=verify-full
                         the same, as GORM and libpq take it
  file:/var/lib/app/inbox.db
                         SQLite; the file must exist, except for "migrate up"
  /var/lib/app/inbox.db  the same
  user:password@tcp(host:3306)/database?tls=true
                         MySQL or MariaDB, as GORM takes it; times are always read as
                         UTC, so parseTime and loc may be left out

On PostgreSQL the usual variables (PGHOST, PGUSER, PGPASSWORD, PGSSLMODE, …) and
~/.pgpass complete the DSN. With PgBouncer in transaction mode add
default_query_exec_mode=exec. A password is never printed.

--schema and --prefix (INBOX_SCHEMA, INBOX_PREFIX) say where the tables are, if
the application sets the options Schema or TablePrefix. On MySQL a schema is a
database. If there are none,
inboxctl names the database that it looked in, and the inboxes that are there.

--replica (INBOX_REPLICA_DSN) names a read replica in the same forms. Then "list",
"show", "failures", "rejected list", "rejected show", "gaps", "markers", "audit" and
the dashboard's pages of these read it, and say how far it is behind. They read the
primary if the replica does not answer or lacks an operator's latest action. All
else, and each action, uses the primary.

--timeout limits connecting, and each statement or transaction.

--actor (INBOX_ACTOR) is the name for the audit: 1 to 200 characters, by default
the user and the machine inboxctl runs on.`

// newRoot builds the root command with all of its subcommands.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use: "inboxctl", Short: "Inspect an inbox and act on it", Long: rootLong,
		Example: `  inboxctl status
  inboxctl failures
  inboxctl list --state poisoned --handler orders.mail
  inboxctl retry --matching --handler orders.mail --dry-run`,
		SilenceErrors: true, SilenceUsage: true,
		Args: unknownCommand, RunE: showHelp, Version: programVersion().Version,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return misuse("%w", err) })
	flags := root.PersistentFlags()
	flags.StringVar(&a.dsn, "dsn", "",
		"the database: postgres://…, host=…, a SQLite file or …@tcp(host:port)/… ("+dsnVariable+")")
	flags.StringVar(&a.replicaDSN, "replica", "",
		"a read replica of the database, for lists, counts and details ("+replicaVariable+")")
	flags.StringVar(&a.schema, "schema", "",
		"the PostgreSQL schema, or MySQL database, of the tables ("+schemaVariable+"; default the search path)")
	flags.StringVar(&a.prefix, "prefix", "", "the prefix of the tables' names ("+prefixVariable+"; default inbox_)")
	flags.StringVar(&a.actor, "actor", "", "the name for the audit ("+actorVariable+"; default user@host)")
	flags.DurationVar(&a.timeout, "timeout", 10*time.Second,
		"the timeout of connecting, and of each statement or transaction")
	flags.StringVarP(&a.output, "output", "o", "table", "table, json or yaml")
	completeFlag(root, "output", "table", "json", "yaml")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.checkFlags(cmd) }

	root.AddCommand(
		watchable(a, newStatus(a)), watchable(a, newList(a)), newShow(a), watchable(a, newFailures(a)),
		newRetry(a), newDiscard(a), newReschedule(a), newRerun(a), newRelease(a), newCancel(a), newReplay(a), newDelete(a),
		newRejected(a),
		watchable(a, newHandlers(a)), watchable(a, newHandler(a)), newPause(a), newResume(a),
		watchable(a, newConsumers(a)), newResumePartition(a),
		newSkipRecord(a), watchable(a, newProgress(a)), newForgetTopic(a), watchable(a, newWorkers(a)),
		watchable(a, newLocks(a)), watchable(a, newGaps(a)), watchable(a, newMarkers(a)),
		watchable(a, newAudit(a)), newBackfill(a), newReadAgain(a), newCleanup(a),
		newRequest(a),
		newMigrate(a), newGrants(a),
		newDashboard(a), newVersion(a), newCompletion(),
		topic("connecting", "The database, the tables' names and the actor", connectingHelp),
		topic("application", "What only the application can do", applicationHelp),
		topic("json", "What -o json and -o yaml print", formatHelp),
		topic("exit-codes", "What the exit code means", exitCodesHelp),
	)
	return root
}

// run is the program without its process.
func run(ctx context.Context, args []string, sys system) int {
	sys.errOut = zapcore.Lock(zapcore.AddSync(sys.errOut)) // an interrupt may write at the same time
	printed := &results{w: sys.out}
	sys.out = printed
	a := &app{system: sys, now: func() time.Time { return time.Now().UTC() }, results: printed}
	return a.run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	cmd, err := root.ExecuteContextC(ctx)
	// Most prints ignore errors, and so does cobra's help. This check reports lost output for all commands.
	if lost := a.results.err; lost != nil && !errors.Is(err, lost) {
		err = errors.Join(err, lost)
	}
	code := exitCode(err)
	if err != nil {
		a.say("inboxctl: %s", errorLine(err))
	}
	if code == exitMisuse {
		a.say("See %q.", cmd.CommandPath()+" --help")
	}
	return code
}

// errorLine formats an error as one line, because some drivers use several, and masks secrets.
func errorLine(err error) string {
	text := afterColon.ReplaceAllString(secrets.Mask(err.Error()), ": ")
	return oneLine(lineEnds.ReplaceAllString(text, "; "))
}

var (
	afterColon = regexp.MustCompile(`:[ \t]*\n\s*`)
	lineEnds   = regexp.MustCompile(`\s*\n\s*`)
)

// say prints a note to the operator. It goes to standard error, so that results can be piped.
func (a *app) say(format string, args ...any) { fmt.Fprintf(a.errOut, format+"\n", args...) }

// results is standard output. After an error each write returns it and writes nothing, so that output has no gap.
type results struct {
	w   io.Writer
	err error
}

func (r *results) Write(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.w.Write(p)
	if err != nil {
		r.err = fmt.Errorf("print the result: %w", err)
	}
	return n, r.err
}

// checkFlags rejects flag values that no command could use.
func (a *app) checkFlags(cmd *cobra.Command) error {
	if !slices.Contains([]string{"table", "json", "yaml"}, a.output) {
		return misuse("--output = %q: must be table, json or yaml", a.output)
	}
	if a.timeout <= 0 {
		return misuse("--timeout = %v: must be more than 0", a.timeout)
	}
	for name, variable := range map[string]string{"dsn": dsnVariable, "replica": replicaVariable,
		"schema": schemaVariable, "prefix": prefixVariable, "actor": actorVariable} {
		if flag := cmd.Flags().Lookup(name); !flag.Changed {
			if err := flag.Value.Set(a.getenv(variable)); err != nil {
				return misuse("%s: %w", variable, err)
			}
		}
	}
	if flag := cmd.Flags().Lookup("actor"); a.actor == "" && !flag.Changed {
		a.actor = defaultActor(a.getenv)
	}
	return nil
}

// topic returns a help page that is not a command.
func topic(name, short, long string) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: long}
}

// completeFlag completes a flag's value from its allowed values.
func completeFlag(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(errors.Join(errors.New("unknown flag"), err))
	}
}

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

// noArgs and oneArg are like cobra's, but their errors say what is expected instead of how many arguments there are.
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

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "The version of inboxctl and of the tables it needs",
		Long: `Prints the version that inboxctl was built from, and the version of the tables that
it needs.

JSON: {"version", "revision", "go", "schema"}.`,
		Example: `  inboxctl version`,
		Args:    noArgs, RunE: func(*cobra.Command, []string) error {
			schema, err := latest(dialects.Names()[0], models.Naming{}) // the same of all
			if err != nil {
				return err
			}
			v := struct {
				ownVersion
				Schema int
			}{programVersion(), schema}
			return a.print(v, func() {
				fact(a.out, "inboxctl", v.Version)
				fact(a.out, "revision", v.Revision)
				fact(a.out, "go", v.Go)
				fact(a.out, "tables", fmt.Sprintf("version %d", v.Schema))
			})
		},
	}
}

// ownVersion is what inboxctl was built from.
type ownVersion struct{ Version, Revision, Go string }

func programVersion() ownVersion {
	b := ownVersion{Version: "(devel)", Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = cmp.Or(info.Main.Version, b.Version)
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				b.Revision = setting.Value
			}
		}
	}
	return b
}

func newCompletion() *cobra.Command {
	return &cobra.Command{
		Use: "completion SHELL", Short: "Print a script that completes commands in your shell",
		Long: `Prints a shell script for the completion of commands, flags and their values. The
shell is bash, zsh, fish or powershell.`,
		Example: `  source <(inboxctl completion bash)
  inboxctl completion zsh > "${fpath[1]}/_inboxctl"
  inboxctl completion fish | source`,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		Args:      oneArg("shell"), RunE: func(cmd *cobra.Command, args []string) error {
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

// watch repeats a command until its context ends, which is no error, or until it fails. A result with gaps is no
// failure: the next one may have none.
func (a *app) watch(cmd *cobra.Command, every time.Duration, once func() error) error {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	ctx := cmd.Context()
	for first := true; ; first = false {
		a.beginResult(first)
		err := once()
		switch {
		case err == nil || ctx.Err() != nil:
		case exitCode(err) == exitPartly:
			a.say("inboxctl: %s", errorLine(err))
		default:
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
