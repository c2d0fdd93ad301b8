package ours

import (
	"math/rand/v2"

	"github.com/google/uuid"

	"github.com/gorm-inbox/inbox/handler"
)

// PayloadBytes is the size of every payload.
const PayloadBytes = 1024

// Payload is the payload of every message. It does not compress.
var Payload = func() []byte {
	random := rand.New(rand.NewPCG(1, 2))
	payload := make([]byte, PayloadBytes)
	for i := range payload {
		payload[i] = byte(random.Uint32())
	}
	return payload
}()

// Messages makes n messages with random IDs (UUIDv4), as most producers do.
func Messages(n int) []handler.RawMessage { return messages(n, uuid.NewRandom) }

// OrderedMessages makes n messages with IDs in time order (UUIDv7).
func OrderedMessages(n int) []handler.RawMessage { return messages(n, uuid.NewV7) }

func messages(n int, id func() (uuid.UUID, error)) []handler.RawMessage {
	all := make([]handler.RawMessage, n)
	for i := range all {
		all[i] = handler.RawMessage{Channel: Channel, ID: uuid.Must(id()).String(), Type: Type, Source: "bench",
			ContentType: "application/octet-stream", Content: Payload}
	}
	return all
}
