package protobuf

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
)

// Contract 5.7, 5.11.
func TestProtobufBodiesAreDecodedOrPoisoned(t *testing.T) {
	var reserved []string
	kit := fxtest.New(t, orders(func(_ context.Context, _ *gorm.DB, m handler.Message[*OrderPlaced]) error {
		reserved = append(reserved, m.Payload.GetValue())
		return nil
	}))
	body, err := proto.Marshal(wrapperspb.String("hat"))
	require.NoError(t, err)
	placed := func(id string, content []byte) handler.RawMessage {
		return handler.RawMessage{Channel: "orders.events", Type: "order.placed", ID: id,
			ContentType: "application/x-protobuf", Content: content}
	}
	kit.Accept(placed("o-1", body), placed("o-2", []byte{0xff}))
	kit.Process()
	kit.RequireCompleted("o-1", "reserve-stock")
	require.Equal(t, []string{"hat"}, reserved)
	status := kit.RequirePoisoned("o-2", "reserve-stock")
	require.Contains(t, *status.LastError, `decode body for handler "reserve-stock"`)
}
