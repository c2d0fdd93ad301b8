package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// proxyCells returns the disturbances of the proxies before PostgreSQL.
func (w *world) proxyCells() []cell {
	proxy := w.database.(*pgproxy.Proxy)
	cells := []cell{
		{"commit_answers_lost", func(lasts time.Duration) outcome { return w.loseCommits(proxy, pgproxy.AnswerLost, lasts) }, 3 * time.Second},
		{"commits_lost", func(lasts time.Duration) outcome { return w.loseCommits(proxy, pgproxy.RequestLost, lasts) }, 3 * time.Second},
		{"connections_cut", func(lasts time.Duration) outcome { return w.cutConnections(proxy, lasts) }, 3 * time.Second},
		{"answers_silent", w.silence(proxy, pgproxy.AnswerSilent), 4 * time.Second},
		{"requests_silent", w.silence(proxy, pgproxy.Silence), 4 * time.Second},
	}
	if w.pooler != nil {
		cells = append(cells, cell{"pooler_killed", w.killPooler, 2 * time.Second})
	}
	return cells
}

// postgresCells returns the disturbances of one PostgreSQL, and of the proxies before it.
func (w *world) postgresCells() []cell {
	proxy := w.database.(*pgproxy.Proxy)
	cells := append(slices.Concat(w.serverCells(), w.proxyCells()), []cell{
		{"connections_exhausted", func(lasts time.Duration) outcome { return w.exhaust(proxy, lasts) }, 4 * time.Second},
		{"database_read_only", w.underDefault("default_transaction_read_only", "on", failedWith("read-only")), 4 * time.Second},
		{"serializable_default", w.serializable, 4 * time.Second},
		{"failover", func(lasts time.Duration) outcome { return w.failOver(proxy, lasts) }, down},
	}...)
	if w.disk != nil {
		cells = append(cells, cell{"disk_full", w.fillDisk, 5 * time.Second})
	}
	return cells
}

// loseCommits cuts connections after PostgreSQL has committed and before its answer has arrived, or before PostgreSQL
// is asked to commit.
func (w *world) loseCommits(proxy *pgproxy.Proxy, fault pgproxy.Fault, lasts time.Duration) outcome {
	const asked = 20
	w.logf("%d commits fail: %v", asked, fault)
	proxy.LoseCommits(fault, asked)
	pause(context.Background(), lasts)
	lost := asked - proxy.Left()
	proxy.Mend()
	w.logf("%d commits have failed", lost)
	return outcome{true, w.resumed(lost > 0, effectAfter)}
}

// cutConnections closes all connections again and again.
func (w *world) cutConnections(proxy *pgproxy.Proxy, lasts time.Duration) outcome {
	began, cut := time.Now(), 0
	for time.Since(began) < lasts {
		cut += proxy.Cut()
		pause(context.Background(), 50*time.Millisecond)
	}
	w.logf("%d connections to PostgreSQL were cut", cut)
	return outcome{true, w.recovered(began, failed)}
}

// silence makes connections half-open: they stay, and one direction is dead. Some statements of any kind are chosen,
// and some that accept. It is felt if an accept has failed after its timeout.
func (w *world) silence(proxy *pgproxy.Proxy, fault pgproxy.Fault) func(time.Duration) outcome {
	return func(lasts time.Duration) outcome {
		const any, accepts = 40, 12
		w.logf("connections to PostgreSQL are half-open for %.1fs: %v", lasts.Seconds(), fault)
		began := time.Now()
		proxy.Lose(fault, any, func(string) bool { return true })
		proxy.Lose(fault, accepts, pgproxy.Containing("INSERT INTO", "inbox_messages"))
		pause(context.Background(), lasts)
		silent := any + accepts - proxy.Left()
		proxy.Mend()
		w.logf("%d connections fell silent", silent)
		timeout := w.settings.StatementTimeout
		felt := w.recovered(began, func(a attempt) bool { return failed(a) && a.ended.Sub(a.began) >= timeout })
		return outcome{silent > 0, func() (bool, time.Duration) {
			felt, took := felt()
			proxy.Cut() // also servers' ends whose clients are gone, which would use up its connections
			return felt, took
		}}
	}
}

// exhaust takes all connections that the server has, after cutting those that clients had.
func (w *world) exhaust(proxy *pgproxy.Proxy, lasts time.Duration) outcome {
	began := time.Now()
	var taken []*pgx.Conn
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	proxy.Cut()
	var since, cut time.Time // when the server first had none, and when those of clients were cut
	for ctx.Err() == nil && (since.IsZero() || time.Since(since) < lasts) {
		conn, err := pgx.Connect(ctx, w.server.DSN())
		if err == nil {
			taken = append(taken, conn)
			continue
		}
		if since.IsZero() {
			w.logf("PostgreSQL has no more connections than %d for %.1fs", len(taken), lasts.Seconds())
			since = time.Now()
		}
		if time.Since(cut) > 200*time.Millisecond { // clients may have been faster
			proxy.Cut()
			cut = time.Now()
		}
		pause(ctx, 5*time.Millisecond)
	}
	felt := w.recovered(began, failedWith("53300"))
	for _, conn := range taken {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = conn.Close(closing) // the server may have closed it
		cancel()
	}
	w.logf("PostgreSQL has connections again")
	return outcome{len(taken) > 0, felt}
}

// set changes a setting of the server, as an operator does, and resets it if the value is empty.
func (w *world) set(name, value string) error {
	statement := fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value)
	if value == "" {
		statement = "ALTER SYSTEM RESET " + name
	}
	return w.execute(w.server.DSN(), statement, "SELECT pg_reload_conf()")
}

// execute runs statements on a connection of its own.
func (w *world) execute(dsn string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	return servers.RunStatements(ctx, dsn, statements...)
}

// underDefault gives all sessions another default for a time.
func (w *world) underDefault(name, value string, felt func(attempt) bool) func(time.Duration) outcome {
	return func(lasts time.Duration) outcome {
		began := time.Now()
		done := w.outage(w.product.title, fmt.Sprintf("has %s = %s", name, value), lasts,
			func() error { return w.set(name, value) }, func() error { return w.set(name, "") })
		return outcome{done, w.recovered(began, felt)}
	}
}

// serializable makes that isolation the sessions' default. It is felt if a session on the workers' route has it.
func (w *world) serializable(lasts time.Duration) outcome {
	const name, value = "default_transaction_isolation", "serializable"
	felt := false
	done := w.outage(w.product.title, "has "+name+" = "+value, lasts, func() error { return w.set(name, value) },
		func() error {
			felt = felt || w.execute(w.database.DSN(), "SELECT 1 / (current_setting('transaction_isolation') = '"+value+"')::int") == nil
			return w.set(name, "")
		})
	return outcome{done, w.resumed(felt, effectAfter)}
}

// failOver makes commits wait for a standby, kills the primary and promotes the standby. Before that the primary is
// stopped for as long as it takes to copy its data.
func (w *world) failOver(proxy *pgproxy.Proxy, lasts time.Duration) outcome {
	primary, found := w.server.(*servers.Postgres)
	if !found {
		return outcome{}
	}
	standby, err := primary.StartStandby()
	if err != nil {
		w.logf("%v", errors.Join(err, primary.Start(), w.set("synchronous_standby_names", "")))
		return outcome{}
	}
	w.logf("PostgreSQL waits for a standby at each commit")
	pause(context.Background(), lasts)
	began := time.Now()
	if err := primary.Kill(); err != nil {
		w.logf("%v", err) // no client reaches what still runs of it
	}
	proxy.Cut()
	for range 3 { // without the server there is nothing to judge
		if err = standby.Promote(); err == nil {
			break
		}
		w.logf("%v", err)
	}
	w.server = standby
	err = errors.Join(err, proxy.Redirect(standby.DSN()), w.judging.Redirect(standby.DSN()))
	w.judging.Cut()
	err = errors.Join(err, primary.Close())
	w.logf("PostgreSQL was killed, its standby is promoted after %.1fs", time.Since(began).Seconds())
	if err != nil {
		w.logf("%v", err)
	}
	return outcome{err == nil, w.recovered(began, failed)}
}

// killPooler kills the PgBouncer that one of the replicas connects to. It is felt if a client of it has lost its
// connection.
func (w *world) killPooler(lasts time.Duration) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client, err := pgx.Connect(ctx, w.pooler.DSN())
	if err != nil {
		w.logf("PgBouncer: %v", err)
		return outcome{}
	}
	w.pooling.Lock()
	defer w.pooling.Unlock()
	lost := false
	done := w.outage("PgBouncer", "killed", lasts, func() error {
		err := w.pooler.Kill()
		lost = client.Ping(ctx) != nil
		return err
	}, w.pooler.Start)
	_ = client.Close(ctx) // it has lost its connection
	return outcome{done, w.resumed(lost, effectAfter)}
}

// keepPooler starts PgBouncer again whenever it has ended by itself, like an operating system does, until ctx ends.
func (w *world) keepPooler(ctx context.Context) {
	for w.pooler != nil && pause(ctx, time.Second) {
		w.pooling.Lock()
		if w.pooler.PID() == 0 {
			w.logf("PgBouncer has crashed; started again: %v", w.pooler.Start())
		}
		w.pooling.Unlock()
	}
}

// fillDisk leaves the server without free space on its file system.
func (w *world) fillDisk(lasts time.Duration) outcome {
	began := time.Now()
	done := w.outage(w.product.title, "has a full disk", lasts, w.disk.fill, func() error {
		err := w.disk.free()
		if s, found := w.server.(server); found {
			err = errors.Join(err, s.Start()) // it ends if it cannot write its log
		}
		return err
	})
	return outcome{done, w.recovered(began, failedWith("53100", "No space left", "database or disk is full"))}
}
