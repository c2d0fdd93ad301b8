package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/models"
)

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "The version of inboxctl and of the tables it needs",
		Long: `Prints the version that inboxctl was built from, and the version of the tables that
it needs.

JSON: {"Version", "Revision", "Go", "Schema"}.`,
		Example: `  inboxctl version`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			schema, err := latest("postgres", models.Naming{})
			if err != nil {
				return err
			}
			v := struct {
				Version, Revision, Go string
				Schema                int
			}{"(devel)", "", runtime.Version(), schema}
			if info, ok := debug.ReadBuildInfo(); ok {
				if info.Main.Version != "" {
					v.Version = info.Main.Version
				}
				for _, setting := range info.Settings {
					if setting.Key == "vcs.revision" {
						v.Revision = setting.Value
					}
				}
			}
			return a.print(v, func() {
				fact(a.out, "inboxctl", v.Version)
				fact(a.out, "revision", v.Revision)
				fact(a.out, "go", v.Go)
				fact(a.out, "tables", fmt.Sprintf("version %d", v.Schema))
			})
		},
	}
}
