package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/internal/store/postgres"
)

func newGrants(a *app) *cobra.Command {
	var roles postgres.Roles
	cmd := &cobra.Command{
		Use: "grants", Short: "Print the SQL that grants PostgreSQL roles the rights they need",
		Long: `Prints a PostgreSQL script that grants each named role the rights it needs on the
tables, with --schema and --prefix filled in, and revokes all others. It needs no
database. The roles and the tables must exist.

  --application  accepts messages, runs handlers, cleans up, serves the dashboard
  --operator     runs inboxctl: all commands except "migrate up"
  --reader       reads everything except the contents of messages and rejected records

Run the script as the owner of the tables, which is the role that ran "migrate up",
and again after each migration. No role may change or delete audit rows.
docs/security.md says how to create the roles.

JSON: {"SQL"}.`,
		Example: `  inboxctl grants --application app --operator ops | psql -v ON_ERROR_STOP=1 orders
  inboxctl grants --schema orders --application app --operator ops --reader grafana`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			script, err := postgres.Grants(a.naming(), roles)
			if err != nil {
				return misuse("%w", err)
			}
			return a.print(struct{ SQL string }{script}, func() { fmt.Fprint(a.out, script) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&roles.Application, "application", "", "the role that the application logs in as")
	flags.StringVar(&roles.Operator, "operator", "", "the role that operators log in as")
	flags.StringVar(&roles.Reader, "reader", "", "the role of those who only read")
	return cmd
}
