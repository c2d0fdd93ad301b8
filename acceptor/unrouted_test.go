package acceptor_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func inboxHooks(accepted *atomic.Int64) handler.Hooks {
	return handler.Hooks{OnAccepted: func(context.Context, handler.AcceptedEvent) { accepted.Add(1) }}
}

func unrouted(id, messageType string) handler.RawMessage {
	m := inboxtest.Message(id)
	m.Type = messageType
	return m
}

func TestUnroutedMessagesAreCountedAndLoggedOncePerType(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, log, inboxtest.Handlers(nothing("a")))
		results, err := ib.Accept(context.Background(), unrouted("1", "x"), unrouted("2", "x"), unrouted("3", "y"),
			inboxtest.Message("4"),
			unrouted("", "x")) // routing comes before the check of the ID
		require.NoError(t, err)
		outcomes := make([]handler.AcceptOutcome, len(results))
		for i, r := range results {
			outcomes[i] = r.Outcome
		}
		require.Equal(t, []handler.AcceptOutcome{handler.OutcomeUnrouted, handler.OutcomeUnrouted, handler.OutcomeUnrouted,
			handler.OutcomeAccepted, handler.OutcomeUnrouted}, outcomes)
		require.EqualValues(t, 4, ib.Counters().Unrouted)
		require.Equal(t, 1, inboxtest.CountMessages(t, ib))
		require.Equal(t, 2, logs.FilterMessageSnippet("has no handler").Len())
	})
}

func TestUnroutedIsInvalidUnderRejectAndHalt(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		for _, policy := range []acceptor.UnroutedPolicy{acceptor.UnroutedReject, acceptor.UnroutedHalt} {
			ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) {
				o.Acceptor.Unrouted = policy
			}), inboxtest.Handlers(nothing("a")))
			_, err := ib.Accept(context.Background(), unrouted("1", "x"))
			var invalid *acceptor.InvalidError
			require.ErrorAs(t, err, &invalid, policy)
			require.Equal(t, "unrouted", invalid.Reason)
			require.ErrorContains(t, err, `channel "c" has no handler for type "x"`)
		}
	})
}

func TestUnknownTypesDoNotFloodTheLog(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, log, inboxtest.Handlers(nothing("a")))
		for i := range 1200 {
			_, err := ib.Accept(context.Background(), unrouted("1", fmt.Sprint(i)))
			require.NoError(t, err)
		}
		require.LessOrEqual(t, logs.Len(), 1001)
		require.Equal(t, 1, logs.FilterMessageSnippet("too many unrouted types").Len())
		require.EqualValues(t, 1200, ib.Counters().Unrouted)
	})
}
