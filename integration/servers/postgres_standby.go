package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"

	"github.com/jackc/pgx/v5"
)

// StartStandby starts a copy of p that follows it by streaming replication, and makes p wait for it
// at each commit. Once StartStandby returns, no commit is answered before the standby has it.
// Connections to p are lost. Freeze the standby to make it unresponsive. Close it like p.
func (p *Postgres) StartStandby() (*Postgres, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	standby, err := p.copied(ctx)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL standby: %w", err)
	}
	if err = standby.Start(); err == nil {
		err = p.administer(ctx, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	}
	if err == nil {
		err = await("synchronous standby", startTimeout, func() bool {
			return p.administer(ctx,
				"SELECT 1 / count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'") == nil
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("PostgreSQL standby: %w", err), standby.Close())
	}
	return standby, nil
}

// copied makes the cluster of a standby with p's settings. It copies the files of a stopped server,
// because not every distribution of PostgreSQL has pg_basebackup.
func (p *Postgres) copied(ctx context.Context) (*Postgres, error) {
	directory, err := newDirectory("postgres", p.account)
	if err != nil {
		return nil, err
	}
	standby := &Postgres{binaries: p.binaries, account: p.account, directory: directory, settings: maps.Clone(p.settings)}
	if standby.port, err = freePort(); err == nil {
		standby.settings["primary_conninfo"] = fmt.Sprintf("host=%s port=%d user=postgres", loopback, p.port)
		err = p.Stop()
	}
	if err == nil {
		copies := exec.Command("sh", "-c", `cp -Rp "$1" "$2" && touch "$2/standby.signal"`, "sh", p.data(), standby.data())
		err = errors.Join(run(ctx, copies, p.account, standby.log()), p.Start())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy the cluster: %w", err), directory.remove())
	}
	return standby, nil
}

// Promote makes a standby an independent server, as after the loss of its primary, and waits until
// it accepts writes.
func (p *Postgres) Promote() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	// The copy has the primary's configuration, and would wait for a standby.
	return wrap("PostgreSQL: promote", p.administer(ctx, "ALTER SYSTEM RESET synchronous_standby_names",
		"SELECT pg_reload_conf()", "SELECT pg_promote()"))
}

func (p *Postgres) administer(ctx context.Context, statements ...string) (err error) {
	conn, err := pgx.Connect(ctx, p.DSN())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}
