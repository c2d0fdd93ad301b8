// Package fxtest tests applications that use an inbox, without a server, without a C compiler and without waiting
// (contract 13).
//
// New makes an inbox on a temporary SQLite file, wired by the same inbox.Module. Nothing runs in the background, and
// only the test moves the clock:
//
//	kit := fxtest.New(t, inbox.Channel("orders", inbox.On("order.placed", inbox.Func("charge", charge))))
//	kit.Accept(fxtest.JSON("orders", "order.placed", "o-1", OrderPlaced{Total: 12}))
//	kit.Process()
//	kit.RequireFailed("o-1", "charge") // the bank was unavailable
//	kit.Advance(time.Minute)
//	kit.Process()
//	kit.RequireCompleted("o-1", "charge")
//
// App runs a whole application of yours. Manual stops its background processing, and Use gives its inboxes to the test
// as kits. Without Manual, WaitCompleted and its siblings wait for what happens in the background.
//
// Import the package under an alias where Uber's package of the same name is used too.
package fxtest
