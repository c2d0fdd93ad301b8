// Package protobuf is the code of docs/kafka.md about message bodies in Protobuf.
package protobuf

import (
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
)

// OrderPlaced stands for a type that protoc-gen-go has generated.
type OrderPlaced = wrapperspb.StringValue

type reserve = func(ctx context.Context, tx *gorm.DB, m handler.Message[*OrderPlaced]) error

//page:begin codec

// fromProtobuf decodes bodies into a type that protoc-gen-go has generated.
func fromProtobuf[T any, P interface {
	*T
	proto.Message
}](_ handler.Metadata, content []byte) (P, error) {
	m := P(new(T))
	return m, proto.Unmarshal(content, m)
}

//page:end

// orders declares a channel whose bodies are Protobuf.
func orders(reserveStock reserve, from ...inbox.ChannelOption) inbox.Option {
	return inbox.Channel("orders.events", append(from,
		//page:begin use
		// reserveStock takes a handler.Message[*OrderPlaced].
		inbox.On("order.placed", inbox.Tx("reserve-stock", reserveStock,
			handler.WithCodec(handler.CodecFunc[*OrderPlaced](fromProtobuf[OrderPlaced])))),
		//page:end
	)...)
}
