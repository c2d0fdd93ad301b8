package acceptor_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// TestDryRunReturnsWhatAnAcceptWouldAndDoesNothing proves contract 7.11.
func TestDryRunReturnsWhatAnAcceptWouldAndDoesNothing(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		core, logs := observer.New(zap.DebugLevel)
		accepted := 0
		r := receiveBy(t, d, func(cfg *acceptor.Config) {
			cfg.Logger = zap.New(core)
			cfg.Hooks.OnAccepted = func(context.Context, handler.AcceptedEvent) { accepted++ }
		})
		r.accept(at(0, "known"))
		lines, woken := logs.Len(), r.woken
		conflicting, unrouted := at(5, "known"), at(6, "6")
		conflicting.Messages[0].Source = "elsewhere"
		unrouted.Messages[0].Type = "x"
		records := []envelope.Received{at(1, "1a", "1b", "known"), bad(2, errMangled), at(3, strings.Repeat("x", 201)),
			at(4, "1a"), conflicting, unrouted, at(7)}
		var would []envelope.Result
		for range 2 {
			var err error
			would, err = r.AcceptAgain(t.Context(), "c", records, true)
			require.NoError(t, err)
			require.Equal(t, "durable, durable bad, durable bad, durable, durable bad, durable, durable", dispositions(would))
			require.Equal(t, []int{2, 1}, []int{would[0].Accepted, would[0].Duplicates})
			require.Equal(t, []string{"known"}, r.messages())
			require.Empty(t, r.rejected())
			require.Equal(t, []int{1, lines, woken}, []int{accepted, logs.Len(), r.woken})
			require.Zero(t, r.counters.Load(telemetry.Duplicates))
			require.Zero(t, r.counters.Load(telemetry.Rejected))
		}
		did, err := r.AcceptAgain(t.Context(), "c", records, false)
		require.NoError(t, err)
		require.Equal(t, would, did)
		require.Equal(t, []string{"1a", "1b", "known"}, r.messages())
		require.Len(t, r.rejected(), 3)
		require.Equal(t, 3, accepted)
		require.EqualValues(t, 3, r.counters.Load(telemetry.Rejected))
	})
}
