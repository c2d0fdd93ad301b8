package choosing

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
)

func TestCommandIsAcceptedOnceForTheHandlerOfAllTypes(t *testing.T) {
	var archived []string
	kit := fxtest.New(t, archive(func(_ context.Context, m handler.Message[Event]) error {
		archived = append(archived, m.Type+" "+m.Payload.ID)
		return nil
	})...)
	require.NoError(t, command(t.Context(), kit.Inbox, "request-1", Event{"o-1"}))
	require.NoError(t, command(t.Context(), kit.Inbox, "request-1", Event{"o-1"}))
	kit.Process()
	kit.RequireCompleted("request-1", "archive-command")
	require.Equal(t, []string{"order.cancel o-1"}, archived)
}

func TestAllModesCanBeDeclaredTogether(t *testing.T) {
	run := func(context.Context, handler.Message[Event]) error { return nil }
	write := func(context.Context, *gorm.DB, handler.Message[Event]) error { return nil }
	_, err := inbox.New("shop", fxtest.OpenDB(t), channels(run, run, write, write)...)
	require.NoError(t, err)
	_, err = inbox.New("shop", fxtest.OpenDB(t), required(run)...)
	require.NoError(t, err)
	_, err = inbox.New("shop", fxtest.OpenDB(t), append(required(run), channels(run, run, write, write)[1])...)
	require.ErrorContains(t, err, `channel "products" consumes in Inline mode`)
}
