package groups

import (
	"context"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
)

const (
	acceptNative     = "accept"
	acceptPortable   = "accept, portable"
	processNative    = "process"
	processPortable  = "process, portable"
	endToEndNative   = "accept and process at once"
	endToEndPortable = "accept and process at once, portable"
)

// Portable measures what the portable profile costs on PostgreSQL, which does not need it.
func Portable() trial.Group {
	portable := inbox.Configure(func(o *inbox.Options) { o.PortableSQL = true })
	return trial.Group{
		Name: "portable", Unit: "message",
		About: "with the statements of the portable profile (PortableSQL), and without",
		Variants: []trial.Variant{
			{Name: acceptNative, New: acceptAs()},
			{Name: acceptPortable, New: acceptAs(portable)},
			{Name: processNative, New: processOurs(processCount, processQuick, processOptions()...)},
			{Name: processPortable, New: processOurs(processCount, processQuick, append(processOptions(), portable)...)},
			{Name: endToEndNative, New: endToEndAs(processCount, processQuick, processOptions()...)},
			{Name: endToEndPortable, New: endToEndAs(processCount, processQuick, append(processOptions(), portable)...)},
		},
		Lines: []trial.Line{
			trial.Ratio("accept_portable_vs_native", acceptPortable, acceptNative, 0),
			trial.Ratio("process_portable_vs_native", processPortable, processNative, 0),
			trial.Ratio("end_to_end_portable_vs_native", endToEndPortable, endToEndNative, 0),
		},
	}
}

func acceptAs(options ...inbox.Option) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, 1, options...)
		if err != nil {
			return nil, err
		}
		return accepting(ib, env.Scale(acceptCount, acceptQuick), 1, acceptBatch, acceptConnections), nil
	}
}

// endToEndAs accepts while the inbox runs, which claims most messages as they are accepted.
func endToEndAs(full, quick int, options ...inbox.Option) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		ib, err := ours.Open(ctx, env.DSN, 1, options...)
		if err != nil {
			return nil, err
		}
		n := env.Scale(full, quick)
		messages := ours.Messages(n)
		t := &trial.Trial{Count: n, Close: ib.Close}
		t.Run = func(ctx context.Context) error {
			if err := ib.Start(ctx); err != nil {
				return err
			}
			if err := ib.AcceptAll(ctx, messages, acceptBatch, acceptConnections); err != nil {
				return err
			}
			return ib.Completed(ctx, n)
		}
		t.Check = func(ctx context.Context) error { return ib.CheckStored(ctx, n, n, n) }
		return t, nil
	}
}
