package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/store/mysql"
	"github.com/gorm-inbox/inbox/internal/store/postgres"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdsn"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/models"
)

func newMigrate(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "migrate", Short: "Create or update the tables, show their version, print their SQL",
		Long: `The tables of an inbox have a version, and a new version of the module may need a
newer one. An application with the option Migrate creates and updates them at its
start. Without it, use these commands before you deploy the application.`,
		Example: `  inboxctl migrate status
  inboxctl migrate up --inbox orders
  inboxctl migrate print --dialect postgres --schema orders`,
		Args: unknownCommand, RunE: showHelp,
	}
	cmd.AddCommand(newMigrateUp(a), newMigrateStatus(a), newMigratePrint(a), newMigratePartition(a),
		newMigrateUnpartition(a))
	return cmd
}

func newMigrateUp(a *app) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "up --inbox NAME", Short: "Create or update the tables",
		Long: `Migrates the tables to the version of this inboxctl, in one transaction. It may be
run repeatedly and concurrently. It creates a missing PostgreSQL schema or SQLite
file. All of it must end within --timeout, including the wait for other users of the
tables: set a longer one for large tables.

--inbox is the name that the application gives its inbox: inbox.New("orders", …)
or inbox.Module("orders", …). It is stored with the tables, and an application with
another name refuses to start on them. "" is a valid name.

JSON: {"version", "outcome"}.`,
		Example: `  inboxctl migrate up --inbox orders
  inboxctl migrate up --inbox orders --schema orders --prefix in_`,
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("inbox") {
				return misuse("--inbox is required: the name that the application gives its inbox")
			}
			return a.withDatabase(cmd.Context(), true, func(ctx context.Context, db *gorm.DB) error {
				return a.migrateUp(ctx, db, name)
			})
		},
	}
	cmd.Flags().StringVar(&name, "inbox", "", "the inbox's name; required")
	return cmd
}

func (a *app) migrateUp(ctx context.Context, db *gorm.DB, name string) error {
	before, err := a.schemaState(ctx, db)
	if err != nil {
		return err
	}
	migrating, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := models.Migrate(migrating, db, a.naming(), name); err != nil {
		if migrating.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("not done within %s, increase --timeout: %w", a.timeout, err)
		}
		return err
	}
	outcome := cmp.Or(map[string]string{"missing": "created", "old": "updated"}[before.State], "nothing to do")
	return a.print(struct {
		Version int
		Outcome string
	}{before.Needed, outcome}, func() { fmt.Fprintf(a.out, "%s: version %d\n", outcome, before.Needed) })
}

// latest returns the version that Migrate migrates to.
func latest(dialect string, naming models.Naming) (int, error) {
	migrations, err := models.SQL(dialect, naming)
	if err != nil {
		return 0, &codedError{exitMisuse, err}
	}
	return migrations[len(migrations)-1].Version, nil
}

// schemaReport is the state of the schema.
type schemaReport struct {
	State  string // "current", "missing" or "old"
	Needed int    // the version this program needs
	Detail string
}

func (a *app) schemaState(ctx context.Context, db *gorm.DB) (schemaReport, error) {
	needed, err := latest(db.Dialector.Name(), a.naming())
	if err != nil {
		return schemaReport{}, err
	}
	o, err := a.ops(db, nil)
	if err != nil {
		return schemaReport{}, err
	}
	report := schemaReport{State: "current", Needed: needed}
	switch err := a.checkSchema(ctx, o); {
	case errors.Is(err, models.ErrSchemaMissing):
		report.State, report.Detail = "missing", err.Error()
	case errors.Is(err, models.ErrSchemaOld):
		report.State, report.Detail = "old", err.Error()
	case err != nil:
		return schemaReport{}, err
	}
	return report, nil
}

func newMigrateStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Whether the tables exist and are new enough",
		Long: `Says whether the tables exist and are new enough for this inboxctl. Newer tables are
fine. It ends with code 1 if they are missing, or old: of an older version or
another commit.

JSON: {"state", "needed", "detail"}; the state is current, missing or old.`,
		Example: `  inboxctl migrate status && echo deploy`,
		Args:    noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withDatabase(cmd.Context(), false, a.migrateStatus)
		},
	}
}

func (a *app) migrateStatus(ctx context.Context, db *gorm.DB) error {
	report, err := a.schemaState(ctx, db)
	if err != nil {
		return err
	}
	err = a.print(report, func() { fmt.Fprintf(a.out, "%s: version %d is needed\n", report.State, report.Needed) })
	if report.State != "current" {
		err = errors.Join(errors.New(report.Detail), err)
	}
	return err
}

func newMigratePartition(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "partition", Short: "Divide the tables by time, for a cleanup that drops whole partitions",
		Long: `Gives the tables on PostgreSQL the partitioned layout, while programs use them.
docs/partitions.md says when that pays, and what it costs. Run it as the owner of
the tables. It reads all messages' IDs and builds two indexes, so set a --timeout of
hours for large tables. Repeat it after an error: it begins anew. On tables that have
this layout it grants the roles that use them what they need, so run it again after
"inboxctl grants".

JSON: {"layout"}.`,
		Example: `  inboxctl migrate partition --timeout 6h`,
		Args:    noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withDatabase(cmd.Context(), false, func(ctx context.Context, db *gorm.DB) error {
				return a.layout("partitioned", stores.Partition(ctx, db, a.naming()))
			})
		},
	}
}

func newMigrateUnpartition(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "unpartition", Short: "Give partitioned tables the plain layout again",
		Long: `Takes back "inboxctl migrate partition". The first call lets no new partition begin.
It ends with code 1 until cleanup has dropped all partitions but the newest, which
takes as long as the longest retention. Then run it again.

JSON: {"layout"}.`,
		Example: `  inboxctl migrate unpartition --timeout 1h`,
		Args:    noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withDatabase(cmd.Context(), false, func(ctx context.Context, db *gorm.DB) error {
				return a.layout("plain", stores.Unpartition(ctx, db, a.naming()))
			})
		},
	}
}

// layout reports the layout that a command has led to, if it did.
func (a *app) layout(name string, err error) error {
	if err != nil {
		return err
	}
	return a.print(struct{ Layout string }{name}, func() { fmt.Fprintf(a.out, "the tables are %s\n", name) })
}

func newMigratePrint(a *app) *cobra.Command {
	var (
		name  string
		after int
	)
	cmd := &cobra.Command{
		Use: "print", Short: "Print the SQL of the tables",
		Long: `Prints the SQL that "inboxctl migrate up" runs, with --schema and --prefix filled
in, to be run by a role that may create tables. It needs no database. --after
omits the versions that the tables have already.

Tables created this way get the inbox's name when the application first starts.

JSON: a list of models.Migration.`,
		Example: `  inboxctl migrate print --dialect postgres | psql -v ON_ERROR_STOP=1 -1 orders
  inboxctl migrate print --dialect mysql | mysql orders
  inboxctl migrate print --dialect sqlite --prefix in_ | sqlite3 inbox.db`,
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			if of := formOf(a.dsn); name == "" && of != nil {
				name = of.Name
			}
			if name == "" {
				return misuse("--dialect is required: %s", strings.Join(dialects.Names(), " or "))
			}
			migrations, err := models.SQL(name, a.naming())
			if err != nil {
				return &codedError{exitMisuse, err}
			}
			migrations = slices.DeleteFunc(migrations, func(m models.Migration) bool { return m.Version <= after })
			of, err := dialects.Named(name)
			if err != nil {
				return err
			}
			return a.print(migrations, func() { a.printSQL(migrations, of.Quoted) })
		},
	}
	cmd.Flags().StringVar(&name, "dialect", "", strings.Join(dialects.Names(), " or ")+" (default that of the DSN)")
	cmd.Flags().IntVar(&after, "after", 0, "only versions above this one")
	completeFlag(cmd, "dialect", dialects.Names()...)
	return cmd
}

func (a *app) printSQL(migrations []models.Migration, quoted func(string) string) {
	if len(migrations) > 0 && migrations[0].Version == 1 && a.schema != "" {
		fmt.Fprintf(a.out, "CREATE SCHEMA IF NOT EXISTS %s;\n\n", quoted(a.schema))
	}
	for _, migration := range migrations {
		fmt.Fprintf(a.out, "-- %s\n%s\n", migration.Name, strings.TrimRight(migration.SQL, "\n"))
	}
}

func newGrants(a *app) *cobra.Command {
	var application, operator, reader, name string
	cmd := &cobra.Command{
		Use: "grants", Short: "Print the SQL that grants roles the rights they need",
		Long: `Prints a script that grants each named role of PostgreSQL, or account of MySQL and
MariaDB (name or name@host), the rights it needs on the tables, with --schema and
--prefix filled in. On PostgreSQL it revokes all others. It needs no database. The
roles and the tables must exist.

  --application  accepts messages, runs handlers, cleans up, serves the dashboard
  --operator     runs inboxctl: all commands except "migrate up"
  --reader       reads everything except the contents of messages and rejected records

Run the script as the owner of the tables, which is the role that ran "migrate up",
and again after each migration. No role may change or delete audit rows.
docs/security.md says how to create the roles, docs/mysql.md the accounts.

JSON: {"sql"}.`,
		Example: `  inboxctl grants --application app --operator ops | psql -v ON_ERROR_STOP=1 orders
  inboxctl grants --schema orders --application app --operator ops --reader grafana
  inboxctl grants --dialect mysql --application app@10.0.%.% | mysql orders`,
		Args: noArgs, RunE: func(*cobra.Command, []string) error {
			if of := formOf(a.dsn); name == "" && of != nil && grants[of.Name] != nil {
				name = of.Name
			}
			print, found := grants[cmp.Or(name, pgdsn.DSN.Name)]
			if !found {
				return misuse("--dialect %q has no roles: %s", name, strings.Join(slices.Sorted(maps.Keys(grants)), " or "))
			}
			script, err := print(a.naming(), application, operator, reader)
			if err != nil {
				return misuse("%w", err)
			}
			return a.print(struct{ SQL string }{script}, func() { fmt.Fprint(a.out, script) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&application, "application", "", "the role that the application logs in as")
	flags.StringVar(&operator, "operator", "", "the role that operators log in as")
	flags.StringVar(&reader, "reader", "", "the role of those who only read")
	names := slices.Sorted(maps.Keys(grants))
	flags.StringVar(&name, "dialect", "", strings.Join(names, " or ")+" (default that of the DSN, or "+pgdsn.DSN.Name+")")
	completeFlag(cmd, "dialect", names...)
	return cmd
}

// grants returns the script of each database that has roles.
var grants = map[string]func(naming models.Naming, application, operator, reader string) (string, error){
	pgdsn.DSN.Name: func(naming models.Naming, application, operator, reader string) (string, error) {
		return postgres.Grants(naming, postgres.Roles{Application: application, Operator: operator, Reader: reader})
	},
	mysqlDSN.Name: func(naming models.Naming, application, operator, reader string) (string, error) {
		return mysql.Grants(naming, mysql.Accounts{Application: application, Operator: operator, Reader: reader})
	},
}
