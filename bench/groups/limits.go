package groups

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/handler"
)

const (
	noLimit     = "no limit"
	farLimit    = "a limit of calls and a rate, never reached"
	farKeyLimit = "a rate of each of 1,000 keys, never reached"

	greedy = "greedy-" // begins the greedy tenant's key

	tenantsAlone  = "no limit, only the small tenants"
	tenantsBehind = "no limit, after the backlog"
	tenantsFair   = "a rate for each tenant, after the backlog"
)

// Limits measures what limits for all workers cost that are never reached.
func Limits() trial.Group {
	const far = 1 << 20
	return trial.Group{
		Name: "limits", Unit: "status",
		About: "a handler that does nothing, without and with limits for all workers",
		Variants: []trial.Variant{
			{Name: noLimit, New: limited()},
			{Name: farLimit, New: limited(handler.FleetConcurrency(far), handler.Rate(far, far))},
			{Name: farKeyLimit, New: limited(handler.RateBy(far, far, byOrderingKey))},
		},
		Lines: []trial.Line{
			trial.Ratio("process_limits_vs_none", farLimit, noLimit, 0.95),
			trial.Ratio("process_key_rate_vs_none", farKeyLimit, noLimit, 0.8),
		},
	}
}

func byOrderingKey(m handler.RawMessage) string { return string(m.OrderingKey) }

func limited(options ...handler.Option) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(processCount, processQuick)
		ib, err := ours.OpenWith(ctx, env.DSN, func(called func()) []*inbox.HandlerSpec {
			return []*inbox.HandlerSpec{inbox.Func("limited", func(context.Context, handler.Message[[]byte]) error {
				called()
				return nil
			}, options...)}
		}, processOptions()...)
		if err != nil {
			return nil, err
		}
		return processAccepted(ctx, env, ib, laneMessages(n, 1_000, "key-"), func(ctx context.Context) error {
			return ib.CheckStored(ctx, n, n, n)
		})
	}
}

// Tenants measures how soon 1 % of the messages is done that came after the 99 % of one tenant.
func Tenants() trial.Group {
	return trial.Group{
		Name: "tenants", Unit: "message of a small tenant",
		About: "100,000 messages (with -quick 15,000), of which 99 % are one tenant's and came first: the time until the 1 % " +
			"of 100 small tenants has run, with 10 slots and calls of 2 ms; the rate is 20 a second for each tenant",
		Variants: []trial.Variant{
			{Name: tenantsAlone, New: tenants(false)},
			{Name: tenantsBehind, New: tenants(true)},
			{Name: tenantsFair, New: tenants(true, handler.RateBy(20, 10, byOrderingKey))},
		},
		Lines: []trial.Line{
			trial.Ratio("tenants_rate_vs_none", tenantsFair, tenantsBehind, 1),
			trial.Ratio("tenants_rate_vs_alone", tenantsFair, tenantsAlone, 0),
		},
	}
}

func tenants(backlog bool, options ...handler.Option) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		all := env.Scale(processCount, processQuick)
		small := all / 100
		var left atomic.Int64
		left.Store(int64(small))
		done := make(chan struct{})
		ib, err := ours.OpenWith(ctx, env.DSN, func(called func()) []*inbox.HandlerSpec {
			return []*inbox.HandlerSpec{inbox.Func("tenants", func(_ context.Context, m handler.Message[[]byte]) error {
				<-time.After(2 * time.Millisecond)
				called()
				if !strings.HasPrefix(string(m.OrderingKey), greedy) && left.Add(-1) == 0 {
					close(done)
				}
				return nil
			}, options...)}
		})
		if err != nil {
			return nil, err
		}
		if backlog {
			if err := ib.AcceptAll(ctx, laneMessages(all-small, 1, greedy), acceptBatch, acceptConnections); err != nil {
				ib.Close()
				return nil, err
			}
		}
		t, err := processAccepted(ctx, env, ib, laneMessages(small, 100, "tenant-"), func(context.Context) error { return nil })
		if err != nil {
			return nil, err
		}
		t.Run = func(ctx context.Context) error {
			if err := ib.Start(ctx); err != nil {
				return err
			}
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return t, nil
	}
}
