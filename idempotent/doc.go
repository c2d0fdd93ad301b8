// Package idempotent handles each message once although its transport delivers it more than once (contract 8). It is
// for consumers whose transport owns the retries. It needs no Kafka, no Fx and no processor.
//
//	handle, err := idempotent.Wrap(store, "billing", charge)
//	…
//	err = handle(ctx, message) // nil: acknowledge. Any error: deliver it again.
//
// A Store remembers the processed messages, by message ID and handler key: gormstore in the handler's own transaction,
// so that the handler's writes happen exactly once; redisstore effectively once; memstore in the memory of this
// process.
package idempotent
