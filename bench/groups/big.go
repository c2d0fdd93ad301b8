package groups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/handler"
)

const (
	acceptOrderedEmpty = "accept, IDs in time order, empty tables"
	acceptOrderedBig   = "accept, IDs in time order, 5 million messages"
	acceptRandomEmpty  = "accept, random IDs, empty tables"
	acceptRandomBig    = "accept, random IDs, 5 million messages"
	copyRandomEmpty    = "COPY, random IDs, empty tables"
	copyRandomBig      = "COPY, random IDs, 5 million messages"
	processEmpty       = "process, random IDs, empty tables"
	processBig         = "process, random IDs, 5 million completed"
)

// Big measures the same work in large tables.
func Big() trial.Group {
	return trial.Group{
		Name: "big", Unit: "message",
		About: "in empty tables, and beside 5 million completed messages of 100 bytes (with -quick 100,000), " +
			"right after a checkpoint, when each page's first change is logged whole",
		Shared: func(_ context.Context, lab *trial.Lab) (io.Closer, error) { return &bigTables{lab: lab}, nil },
		Variants: []trial.Variant{
			{Name: acceptOrderedEmpty, New: bigAccept(true, false)},
			{Name: acceptOrderedBig, New: bigAccept(true, true)},
			{Name: acceptRandomEmpty, New: bigAccept(false, false)},
			{Name: acceptRandomBig, New: bigAccept(false, true)},
			{Name: copyRandomEmpty, New: bigCopy(false)},
			{Name: copyRandomBig, New: bigCopy(true)},
			{Name: processEmpty, New: bigProcess(false, false)},
			{Name: processBig, New: bigProcess(false, true)},
		},
		Lines: []trial.Line{
			trial.Ratio("accept_5m_vs_empty", acceptOrderedBig, acceptOrderedEmpty, 0.85).Times(2),
			trial.Ratio("accept_5m_vs_empty_random", acceptRandomBig, acceptRandomEmpty, 0.65),
			trial.Ratio("copy_5m_vs_empty_random", copyRandomBig, copyRandomEmpty, 0),
			trial.Ratio("process_5m_completed_vs_empty", processBig, processEmpty, 0.85),
		},
	}
}

// bigDatabase is a database with millions of rows, whose messages' IDs are in time order or random.
type bigDatabase interface {
	dsn(ctx context.Context, ordered bool) (string, error)
}

// bigTables are databases with millions of rows, filled on first use. Rows that trials add stay
// there, completed. In a whole run they are a tenth of all rows.
type bigTables struct {
	lab             *trial.Lab
	mu              sync.Mutex
	ordered, random *server.Database
}

func (b *bigTables) dsn(ctx context.Context, ordered bool) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	database := &b.random
	if ordered {
		database = &b.ordered
	}
	if *database == nil {
		var err error
		if *database, err = b.lab.Server.NewDatabase(ctx); err != nil {
			return "", err
		}
		if err := b.fill(ctx, (*database).DSN, ordered); err != nil {
			return "", err
		}
	}
	return (*database).DSN, nil
}

func (b *bigTables) fill(ctx context.Context, dsn string, ordered bool) error {
	ib, err := ours.Open(ctx, dsn, 1)
	if err != nil {
		return err
	}
	defer ib.Close()
	id, err := ib.Template(ctx)
	if err != nil {
		return err
	}
	began, n := time.Now(), b.lab.Scale(5_000_000, 100_000)
	before, err := b.lab.Server.Usage(ctx)
	if err != nil {
		return err
	}
	if err := ib.Preload(ctx, dsn, id, n, ordered); err != nil {
		return err
	}
	after, err := b.lab.Server.Usage(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.lab.Log, "%s  %d messages loaded in %.0f s (of the server's CPU: %.0f s)\n",
		time.Now().Format("15:04:05"), n, time.Since(began).Seconds(), (after.Server - before.Server).Seconds())
	return nil
}

// Close drops the databases.
func (b *bigTables) Close() error {
	var errs []error
	for _, d := range []*server.Database{b.ordered, b.random} {
		if d != nil {
			errs = append(errs, d.Drop())
		}
	}
	return errors.Join(errs...)
}

// bigOpen opens an inbox on the chosen tables, whose database it returns too. Nothing is pending in
// them.
func bigOpen(ctx context.Context, env *trial.Env, ordered, big bool) (ib *ours.Inbox, dsn string, err error) {
	dsn = env.DSN
	if big {
		if dsn, err = env.Shared.(bigDatabase).dsn(ctx, ordered); err != nil {
			return nil, "", err
		}
		if err := drain(ctx, dsn); err != nil {
			return nil, "", err
		}
	}
	ib, err = ours.Open(ctx, dsn, 1, processOptions()...)
	return ib, dsn, err
}

// drain processes messages that an earlier trial has accepted.
func drain(ctx context.Context, dsn string) error {
	ib, err := ours.Open(ctx, dsn, 1, processOptions()...)
	if err != nil {
		return err
	}
	defer ib.Close()
	_, err = ib.ProcessPending(ctx)
	return err
}

func bigMessages(n int, ordered bool) []handler.RawMessage {
	if ordered {
		return ours.OrderedMessages(n)
	}
	return ours.Messages(n)
}

func bigAccept(ordered, big bool) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, _, err := bigOpen(ctx, env, ordered, big)
		if err != nil {
			return nil, err
		}
		n := env.Scale(50_000, 20_000)
		messages := bigMessages(n, ordered)
		return &trial.Trial{
			Count: n,
			Run: func(ctx context.Context) error {
				return ib.AcceptAll(ctx, messages, acceptBatch, acceptConnections)
			},
			Check: func(ctx context.Context) error { return ib.CheckMessages(ctx, messages, n, 0) },
			Close: ib.Close,
		}, nil
	}
}

func bigCopy(big bool) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, dsn, err := bigOpen(ctx, env, false, big)
		if err != nil {
			return nil, err
		}
		n := env.Scale(50_000, 20_000)
		messages := bigMessages(n, false)
		loads, err := ib.NewLoads(ctx, messages, 1)
		if err != nil {
			return nil, err
		}
		return &trial.Trial{
			Count: n,
			Run:   func(ctx context.Context) error { return loads.Copy(ctx, dsn, acceptBatch, acceptConnections) },
			Check: func(ctx context.Context) error { return ib.CheckMessages(ctx, messages, n, 0) },
			Close: ib.Close,
		}, nil
	}
}

func bigProcess(ordered, big bool) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, _, err := bigOpen(ctx, env, ordered, big)
		if err != nil {
			return nil, err
		}
		messages := bigMessages(env.Scale(100_000, 30_000), ordered)
		return processing(ctx, env, ib, messages)
	}
}

// processing is like processAccepted for tables that may have other messages. Large tables are
// analysed already.
func processing(
	ctx context.Context, env *trial.Env, ib *ours.Inbox, messages []handler.RawMessage,
) (*trial.Trial, error) {
	return processAccepted(ctx, env, ib, messages, func(ctx context.Context) error {
		return ib.CheckMessages(ctx, messages, len(messages), len(messages))
	})
}
