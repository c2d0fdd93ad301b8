package groups

import (
	"context"
	"os"
	"path/filepath"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

// SQLite measures the same work on a SQLite file.
func SQLite() trial.Group {
	return trial.Group{
		Name: "sqlite", Unit: "message", NoDatabase: true,
		About: "batches of 500 accepted and processed on a SQLite file (WAL mode, synchronous FULL), with drivers " +
			"in pure Go (modernc) and C (mattn); beside GORM with a transaction per message and two updates per status",
		Variants: []trial.Variant{
			{Name: "accept, modernc", New: sqliteAccept(ours.Modernc)},
			{Name: "accept, mattn", New: sqliteAccept(ours.Mattn)},
			{Name: "accept, GORM one by one, modernc", New: sqliteAcceptByHand(ours.Modernc)},
			{Name: "accept, GORM one by one, mattn", New: sqliteAcceptByHand(ours.Mattn)},
			{Name: "process, modernc", New: sqliteProcess(ours.Modernc)},
			{Name: "process, mattn", New: sqliteProcess(ours.Mattn)},
			{Name: "process, GORM one by one, modernc", New: sqliteProcessByHand(ours.Modernc)},
			{Name: "process, GORM one by one, mattn", New: sqliteProcessByHand(ours.Mattn)},
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
		n := env.Scale(30_000, 10_000)
		messages := ours.Messages(n)
		return &trial.Trial{
			Count: n,
			Run: func(ctx context.Context) error {
				return ib.AcceptAll(ctx, messages, acceptBatch, acceptConnections)
			},
			Check: func(ctx context.Context) error { return ib.CheckStored(ctx, n, n, 0) },
			Close: ib.Close,
		}, nil
	})
}

func sqliteProcess(driver string) newTrial {
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
			Run:   completing(ib, n),
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
