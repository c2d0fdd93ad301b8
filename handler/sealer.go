package handler

import "context"

// Sealer changes how contents are stored: it encrypts or compresses them, or puts them elsewhere and leaves a claim
// check. The option Sealer of an inbox sets it (contract 15). Seal is called before a message, or the value of a
// rejected record, is stored, and Open before a handler, an outgoing destination or a dead-letter topic gets it.
//
// Both are called concurrently, each with a deadline (StatementTimeout), and must return when ctx ends. Both may be
// called several times for one content, for example with each attempt, and Seal also for one that turns out to be a
// duplicate or is never committed. A batch seals and opens its messages one after the other. A panic is an error. The
// text of an error is stored and shown, so it must not quote the content.
type Sealer interface {
	// Seal returns what is stored in place of the content, and the ID of the key, in 1 to 200 characters, that Open is
	// given. Operators see that ID. To rotate keys, return another one; Open must know both as long as messages sealed
	// with them are stored. Nil and an empty ID leave this content as it is. Seal must neither change nor keep content.
	// What it puts elsewhere must be durable when it returns: the record's offset may be committed right after.
	//
	// Poison says that this content can never be sealed: the message is invalid, and the value of a rejected record is
	// lost but for its size and SHA-256. Any other error fails the accept, and a consumer tries again.
	Seal(ctx context.Context, of Identity, content []byte) (sealed []byte, keyID string, err error)
	// Open returns the content again. It must neither change nor keep sealed. Poison says that it can never be opened:
	// the message is poisoned. Any other error fails the attempt, as a handler's error does; RetryAfter and Snooze work.
	Open(ctx context.Context, of Identity, keyID string, sealed []byte) (content []byte, err error)
}

// Identity says whose content is sealed. It is the same in Seal and in Open, so an AEAD can bind it. ID is that of the
// message or, of a rejected record, that of its row. Such a record has neither Type nor Source.
type Identity struct{ Channel, ID, Type, Source string }
