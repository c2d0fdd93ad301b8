package groups

import (
	"context"
	"os"
	"path/filepath"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

const (
	processModernc    = "process with modernc"
	processMattn      = "process with mattn"
	statementsModernc = "statements alone with modernc"
	statementsMattn   = "statements alone with mattn"
)

// SQLite measures the same work on a SQLite file.
func SQLite() trial.Group {
	return trial.Group{
		Name: "sqlite", Unit: "message", NoPostgres: true,
		About: "batches of 500 accepted and processed on a SQLite file (WAL mode, synchronous FULL), with drivers " +
			"in pure Go (modernc) and C (mattn); beside GORM with a transaction per message and two updates per status, and " +
			"beside the statements of processing alone, in a loop",
		Variants: []trial.Variant{
			{Name: "accept with modernc", New: sqliteAccept(ours.Modernc)},
			{Name: "accept with mattn", New: sqliteAccept(ours.Mattn)},
			{Name: "accept with modernc, GORM one by one", New: sqliteAcceptByHand(ours.Modernc)},
			{Name: "accept with mattn, GORM one by one", New: sqliteAcceptByHand(ours.Mattn)},
			{Name: processModernc, New: sqliteProcess(ours.Modernc)},
			{Name: processMattn, New: sqliteProcess(ours.Mattn)},
			{Name: statementsModernc, New: sqliteStatements(ours.Modernc)},
			{Name: statementsMattn, New: sqliteStatements(ours.Mattn)},
			{Name: "process with modernc, GORM one by one", New: sqliteProcessByHand(ours.Modernc)},
			{Name: "process with mattn, GORM one by one", New: sqliteProcessByHand(ours.Mattn)},
		},
		Lines: []trial.Line{
			trial.Ratio("sqlite_process_vs_statements_mattn", processMattn, statementsMattn, 0.4),
			trial.Ratio("sqlite_process_vs_statements_modernc", processModernc, statementsModernc, 0.4),
			trial.Rate("sqlite_process_mattn_rate", processMattn, 35_000),
			trial.Rate("sqlite_process_modernc_rate", processModernc, 25_000),
		},
	}
}

// inDirectory prepares a trial on a file in a directory of its own, which is removed when the trial
// is closed.
func inDirectory(prepare func(ctx context.Context, env *trial.Env, path string) (*trial.Trial, error)) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		directory, err := os.MkdirTemp("", "inbox-bench-")
		if err != nil {
			return nil, err
		}
		t, err := prepare(ctx, env, filepath.Join(directory, "bench.db"))
		if err != nil {
			_ = os.RemoveAll(directory)
			return nil, err
		}
		end := t.Close
		t.Close = func() { end(); _ = os.RemoveAll(directory) }
		return t, nil
	}
}

func sqliteAccept(driver string) newTrial {
	return inDirectory(func(ctx context.Context, env *trial.Env, path string) (*trial.Trial, error) {
		ib, err := ours.OpenSQLite(ctx, driver, path)
		if err != nil {
			return nil, err
		}
		return accepting(ib, env.Scale(30_000, 10_000), 1, acceptBatch, acceptConnections), nil
	})
}

func sqliteProcess(driver string) newTrial {
	return sqlitePending(driver, completing)
}

// sqliteStatements is the part of sqliteProcess that no processor can save: one statement claims a
// thousand statuses, one reads their messages, one completes them.
func sqliteStatements(driver string) newTrial {
	return sqlitePending(driver, func(ib *ours.Inbox, _ int) func(context.Context) error { return statementsAlone(ib) })
}

// sqlitePending measures what is done with pending statuses.
func sqlitePending(driver string, process func(ib *ours.Inbox, n int) func(context.Context) error) newTrial {
	return inDirectory(func(ctx context.Context, env *trial.Env, path string) (*trial.Trial, error) {
		ib, err := ours.OpenSQLite(ctx, driver, path, processOptions()...)
		if err != nil {
			return nil, err
		}
		n := env.Scale(30_000, 10_000)
		if err := ib.AcceptAll(ctx, ours.Messages(n), acceptBatch, acceptConnections); err != nil {
			ib.Close()
			return nil, err
		}
		return &trial.Trial{
			Count: n,
			Run:   process(ib, n),
			Check: func(ctx context.Context) error { return ib.CheckStored(ctx, n, n, n) },
			Close: ib.Close,
		}, nil
	})
}

func sqliteAcceptByHand(driver string) newTrial {
	return inDirectory(func(ctx context.Context, env *trial.Env, path string) (*trial.Trial, error) {
		p, err := openPlain(ctx, driver, path)
		if err != nil {
			return nil, err
		}
		n := env.Scale(3_000, 1_000)
		messages := ours.Messages(n)
		return &trial.Trial{
			Count: n,
			Run:   func(ctx context.Context) error { return p.accept(ctx, messages) },
			Check: func(ctx context.Context) error { return p.check(ctx, n, 0) },
			Close: p.close,
		}, nil
	})
}

func sqliteProcessByHand(driver string) newTrial {
	return inDirectory(func(ctx context.Context, env *trial.Env, path string) (*trial.Trial, error) {
		p, err := openPlain(ctx, driver, path)
		if err != nil {
			return nil, err
		}
		n := env.Scale(3_000, 1_000)
		if err := p.accept(ctx, ours.Messages(n)); err != nil {
			p.close()
			return nil, err
		}
		return &trial.Trial{
			Count: n,
			Run:   p.process,
			Check: func(ctx context.Context) error { return p.check(ctx, n, n) },
			Close: p.close,
		}, nil
	})
}
