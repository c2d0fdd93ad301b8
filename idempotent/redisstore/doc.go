// Package redisstore remembers in Redis which messages have been processed. It is an idempotent.Store (contract 8.2)
// for handlers whose effects are not in a database that this module can join, or whose database has no room for
// markers.
//
//	store, err := redisstore.New(client)
//
// # What it promises
//
// Effectively once. A call claims its key with SET NX, a token of its own and a lease, and renews the lease while the
// body runs. After the body's success it replaces the claim by a marker that lives for the retention; this is atomic
// and happens only if the call still holds the claim. While a claim is live no other call runs the body. A call that
// has lost its claim cancels the body's context with the cause idempotent.ErrLost, and returns that error for any
// result of the body.
//
// The effect and the marker are in two places, so a body can run twice:
//
//   - It has succeeded, and the marker could not be written before the lease ended: the process died in
//     between, or Redis was unreachable for that long. The message is delivered again and the body runs
//     again.
//   - The process stalled for longer than the lease (a stopped virtual machine, a swapping host) or was cut
//     off from Redis for that long. The lease ends and another call runs the body, while the first one's may
//     continue until it checks its context. So a body should watch its context, and an
//     effect that must not run concurrently with itself needs its own fence.
//   - Redis itself lost data: it evicted the claim or the marker (see below), was restarted without its data,
//     or failed over to a replica that did not have them yet (replication is asynchronous).
//   - Clocks changed. Redis ends leases and retentions by its wall clock. If that is set forward, or after a
//     failover to a replica whose clock is ahead, it ends them that much earlier. And the clock of a process
//     stands still while its machine is suspended: the process assumes that its claim is live until a
//     renewal, or finalise, is refused, and the body continues until then.
//
// If an effect must not happen twice and is written to a database, use gormstore: its marker commits with the
// effect. It is the better choice for money.
//
// # What Redis has to be
//
// A single server or a cluster (the keys of a command are in one slot). The tests run on Redis 7.0.15, alone and as a
// cluster. Redis 6 and later, a server behind Sentinel, and servers that speak the protocol and run scripts, such as
// Valkey, should work too, but are not tested. A redis.Ring does not work: if a server does not respond it asks another
// one for its keys, and finds no marker there.
//
// A client that is given to New must have ContextTimeoutEnabled, as Open's has. Its hooks must respect their context,
// too: until a hook returns, its command does not.
//
// The user needs the commands SET, GET, PEXPIRE, DEL, EVALSHA and EVAL on the keys of KeyPrefix (~inbox:*), SELECT for
// a database other than 0, and CLUSTER SLOTS and COMMAND for a cluster (without COMMAND the client works, but asks for
// it in vain before each command). A script is tried before the first body, so that a user without the right to run
// scripts runs no body. INFO is asked once and may be refused, unless RequireNoEviction is set.
//
// maxmemory-policy must be noeviction. Every other policy may evict markers, because all of them have a TTL, and a
// message whose marker was evicted is handled again. If the server responds that it may evict, this is logged once;
// with RequireNoEviction nothing runs on such a server. When the server is out of memory under noeviction, claims are
// refused and nothing runs. Calls that are already running cannot write their markers (the first case above), so leave
// the server enough memory.
//
// Persistence (appendonly yes) decides how many of the latest markers a restart of the server loses: with appendfsync
// everysec the markers of about one second.
//
// Clients that read from replicas (ReadOnly, RouteByLatency, RouteRandomly) may find a duplicate late, never too early:
// the claim is always made at the master.
//
// # Keys
//
// A key is "{prefix}:{" message ID "}:" handler key. If the ID has a namespace, ":" and the namespace follow the
// message ID. The characters %, :, { and } of each part are percent-encoded: inbox:{0190f3c4}:orders.bill. The braces
// are Redis Cluster's hash tag: messages spread over all slots, and a handler with legacy keys has all keys of a
// message in one. A value is "claimed" with the claim's token, or "processed" with the token, the time and the message
// type.
package redisstore
