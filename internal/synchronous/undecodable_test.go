package synchronous_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

func TestUndecodableBodyIsBadUnlessTheCodecAsksForARetry(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		type order struct{ N int }
		tries := 0
		waits := handler.CodecFunc[order](func(handler.Metadata, []byte) (order, error) {
			if tries++; tries < 3 {
				return order{}, handler.RetryAfter(time.Millisecond, errBoom)
			}
			return order{}, nil
		})
		nothing := func(context.Context, handler.Message[order]) error { return nil }
		r, counters := newRunner(t, d.DB, nil, handler.New("strict", nothing),
			handler.New("waits", nothing, handler.WithCodec(waits)))
		var failed *synchronous.FailedError
		require.ErrorAs(t, deliver(t, r, 0, "not json"), &failed)
		require.Len(t, failed.Failures, 1)
		require.Equal(t, "strict", failed.Failures[0].HandlerKey)
		require.Equal(t, 1, failed.Failures[0].Attempts)
		require.Equal(t, 3, tries)
		require.EqualValues(t, 1, counters.Load(telemetry.Processed))
	})
}
