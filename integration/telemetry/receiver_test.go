package telemetry

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// outcomes has a handler of messages whose IDs say what it does, and the messages.
func outcomes(ctx context.Context, m inboxtest.Bytes) error {
	switch word, _, _ := strings.Cut(m.ID, "-"); word {
	case "fail":
		return errors.New("it failed")
	case "panic":
		panic("it panicked")
	}
	return ctx.Err()
}

func deliver(t *testing.T, handle func(context.Context, inboxtest.Bytes) error, ids ...string) {
	t.Helper()
	for _, id := range ids {
		func() {
			defer func() { _ = recover() }()
			_ = handle(t.Context(), inboxtest.Bytes{Metadata: handler.Metadata{ID: id, Type: "t"}})
		}()
	}
}

// TestReceiverWithoutInboxIsMeasured proves contract 8.6 and 12: a wrapped handler exports what an Inline channel
// exports, by its key and channel.
func TestReceiverWithoutInboxIsMeasured(t *testing.T) {
	m := newManual(t)
	store, err := memstore.New()
	require.NoError(t, err)
	r, err := idempotent.New(store, idempotent.Configure(func(o *idempotent.Options) {
		o.MeterProvider, o.Channel = m.provider, "payments"
	}))
	require.NoError(t, err)
	apply, err := idempotent.Handle(r, "apply", outcomes)
	require.NoError(t, err)
	plain, err := idempotent.Wrap(store, "plain", outcomes, idempotent.Configure(func(o *idempotent.Options) {
		o.MeterProvider, o.AllowMissingID = m.provider, true
	}))
	require.NoError(t, err)
	deliver(t, apply, "good-1", "good-2", "good-1", "fail-1", "panic-1", "")
	deliver(t, plain, "good-1", "")

	collected := m.collect(t)
	const handlerKey = "inbox.handler.key"
	require.Equal(t, map[string]float64{"apply": 2, "plain": 2}, by(collected["inbox.attempts.processed"], handlerKey))
	require.Equal(t, map[string]float64{"apply": 2}, by(collected["inbox.attempts.failed"], handlerKey))
	require.Equal(t, map[string]float64{"apply": 1}, by(collected["inbox.inline.duplicates_skipped"], handlerKey))
	require.Equal(t, map[string]float64{"apply": 1, "plain": 1}, by(collected["inbox.inline.missing_keys"], handlerKey))
	require.Equal(t, map[string]float64{"payments": 2, "": 2}, by(collected["inbox.attempts.processed"], "inbox.channel"))
	require.EqualValues(t, 2, r.Counts().Processed, "the counters are as before")
	calls := map[string]uint64{}
	for _, p := range collected["messaging.process.duration"] {
		calls[p.of(handlerKey)+" "+p.of("inbox.outcome")+" "+p.of("error.type")] += p.count
		require.Contains(t, p.bounds, 300.0)
		require.Equal(t, "process", p.of("messaging.operation.name"))
	}
	require.Equal(t, map[string]uint64{"apply completed ": 2, "apply failed _OTHER": 2, "plain completed ": 2}, calls)
	require.Len(t, collected, 5, "nothing else")
}

func TestReceiverCountsOnlyCommittedTransactions(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		m := newManual(t)
		inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing))) // makes the tables
		store, err := gormstore.New(d.DB)
		require.NoError(t, err)
		apply, err := gormstore.Wrap(store, "apply", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
			if m.ID == "swallow" {
				tx.Exec("SELECT no_such_column")
			}
			return outcomes(ctx, m)
		}, idempotent.Configure(func(o *idempotent.Options) { o.MeterProvider = m.provider }))
		require.NoError(t, err)
		deliver(t, apply, "good-1", "good-1", "fail-1", "swallow")
		collected := m.collect(t)
		require.EqualValues(t, 1, sum(collected["inbox.attempts.processed"]))
		require.EqualValues(t, 1, sum(collected["inbox.inline.duplicates_skipped"]))
		require.EqualValues(t, 1, sum(collected["inbox.attempts.failed"]))
		calls := map[string]uint64{}
		for _, p := range collected["messaging.process.duration"] {
			calls[p.of("inbox.outcome")] += p.count
		}
		require.Equal(t, map[string]uint64{"completed": 1, "failed": 1, "released": 1}, calls,
			"a swallowed error of the database is the store's")
	})
}

func TestReceiverUsesTheGlobalProviderByDefault(t *testing.T) {
	m := newManual(t)
	otel.SetMeterProvider(m.provider)
	t.Cleanup(func() { otel.SetMeterProvider(noop.NewMeterProvider()) })
	handle, err := idempotent.Wrap(nil, "apply", outcomes)
	require.NoError(t, err)
	deliver(t, handle, "good-1")
	var collected metricdata.ResourceMetrics
	require.NoError(t, m.Collect(t.Context(), &collected))
	for _, scope := range collected.ScopeMetrics { // the inboxes of other tests may use this provider, too
		if scope.Scope.Name != telemetry.ReceiverScope {
			continue
		}
		for _, its := range scope.Metrics {
			if its.Name == "inbox.attempts.processed" {
				require.EqualValues(t, 1, sum(pointsOf(t, its.Data)), "it ran, with no store to remember it")
				return
			}
		}
	}
	require.Fail(t, "nothing was collected")
}

// TestReceiverAndInboxShareAProvider checks that neither hides the other's series.
func TestReceiverAndInboxShareAProvider(t *testing.T) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	require.NoError(t, err)
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	ib := inboxtest.New(t, fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) { o.MeterProvider = provider }),
		inboxtest.Handlers(inboxtest.Do("stored", inboxtest.Nothing)))
	inboxtest.Accept(t, ib, "m1")
	inboxtest.Process(t, ib)
	handle, err := idempotent.Wrap(nil, "wrapped", outcomes, idempotent.Configure(func(o *idempotent.Options) {
		o.MeterProvider = provider
	}))
	require.NoError(t, err)
	deliver(t, handle, "good-1")
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "inbox_attempts_processed_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "inbox_handler_key" {
					values[l.GetValue()] = m.GetCounter().GetValue()
				}
			}
		}
	}
	require.Equal(t, map[string]float64{"stored": 1, "wrapped": 1}, values)
}
