package processor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/processor"
)

// Contract 12.
func TestLogSumsUpManyPoisonedStatuses(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		core, logs := observer.New(zap.WarnLevel)
		log := zap.New(core, zap.AddStacktrace(zap.ErrorLevel)) // as zap.NewProduction does
		poison := func(_ context.Context, m inboxtest.Bytes) error { return handler.Poison(errors.New("boom " + m.ID)) }
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Logger = log }),
			inboxtest.Handlers(inboxtest.Do("a", poison), inboxtest.Do("b", poison)))
		const messages = 500
		inboxtest.Accept(t, ib, many(messages)...)
		require.Equal(t, processor.Drained{Picked: 2 * messages, Poisoned: 2 * messages}, inboxtest.Process(t, ib))
		for _, handler := range []string{"a", "b"} {
			its := logs.FilterField(zap.String("handler_key", handler))
			told := its.FilterMessage("inbox: message poisoned").Len()
			require.Less(t, told, messages/2, handler)
			for _, sum := range its.FilterMessage("inbox: message poisoned: further lines were left out").All() {
				told += int(sum.ContextMap()["times"].(int64))
			}
			require.Equal(t, messages, told, fmt.Sprintf("all of %q are accounted for", handler))
		}
		for _, e := range logs.All() {
			require.Empty(t, e.Stack)
		}
	})
}
