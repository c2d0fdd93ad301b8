package fxtest

import (
	"encoding/json"
	"fmt"

	"github.com/gorm-inbox/inbox/handler"
)

// JSON returns a message with payload as its JSON body. It panics if payload cannot be marshalled. Set further fields
// on the result.
func JSON(channel, messageType, id string, payload any) handler.RawMessage {
	content, err := json.Marshal(payload)
	if err != nil {
		panic(fmt.Sprintf("fxtest: payload of message %q: %v", id, err))
	}
	return handler.RawMessage{Channel: channel, Type: messageType, ID: id, Content: content,
		ContentType: "application/json"}
}
