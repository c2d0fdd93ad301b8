// Package redisstore remembers in Redis which messages have been processed: an
// idempotent.Store (contract 8.2) for handlers whose effects are not in a
// database that this module can join, or that has no room for markers.
//
//	store, err := redisstore.New(client)
//
// # What it promises
//
// Effectively once. A call claims its key with SET NX, a token of its own and a
// lease, renews the lease while the body runs, and after the body's success
// replaces the claim by a marker that lives for the retention, atomically and
// only if the claim is still its own. While a claim is live nobody else runs the
// body; a call that has lost its claim returns idempotent.ErrLost, whatever its
// body said, and cancels the body's context with that cause.
//
// The effect and the marker are in two places, so a body can run twice:
//
//   - It has succeeded, and the marker could not be written before the lease ran
//     out: the process died in between, or Redis was away that long. The message
//     comes again and the body with it.
//   - The process stalled for longer than the lease (a stopped virtual machine, a
//     swapping host) or was cut off from Redis for that long. The lease runs out,
//     another call runs the body, and the first one's may go on until it looks at
//     its context. So a body should watch its context, and what must not happen
//     beside itself needs a fence of its own.
//   - Redis itself forgot: it evicted the claim or the marker (below), was
//     restarted without its data, or failed over to a replica that had not got
//     them yet (replication is asynchronous).
//   - Clocks moved. Redis ends leases and retentions by its wall clock: set
//     forward, or after a failover to a replica whose clock is ahead, it ends
//     them that much earlier. And the clock of a process stands still while its
//     machine is suspended: it takes its claim for live until a renewal, or
//     finalise, is refused, and the body goes on until then.
//
// Where an effect must not happen twice and is written to PostgreSQL or SQLite,
// use gormstore: its marker commits with the effect. It is the better choice for
// money.
//
// # What Redis has to be
//
// A single server, or a cluster (every command has one key). The tests run on
// Redis 7.0.15, alone and as a cluster. Redis 6 and later, a server behind
// Sentinel, and what speaks the protocol and runs scripts, such as Valkey, should
// work too, but are not tested. Not a redis.Ring: it asks another server for the
// keys of one that does not answer, and finds no marker there.
//
// The user needs the commands SET, GET, PEXPIRE, DEL, EVALSHA and EVAL on the
// keys of KeyPrefix (~inbox:*), SELECT for a database other than 0, and CLUSTER
// SLOTS and COMMAND for a cluster (without COMMAND the client works, but asks for
// it in vain before each command); before the first body a script is tried, so
// that a user without that right runs none. INFO is wanted once and may be
// refused, unless RequireNoEviction is set.
//
// maxmemory-policy must be noeviction. Every other policy may evict markers,
// which have a TTL all of them, and a message whose marker was evicted is handled
// again. It is said in the log once if the server answers that it may happen; with
// RequireNoEviction nothing runs on such a server.
// Out of memory under noeviction, claims are refused and nothing runs; what runs
// already cannot be finalised (the first case above), so leave the server room.
//
// Persistence (appendonly yes) decides how many of the latest markers a restart
// of the server forgets: with appendfsync everysec those of about one second.
//
// Clients that read from replicas (ReadOnly, RouteByLatency, RouteRandomly) may
// find a duplicate late, never too early: the claim is always made at the master.
//
// # Keys
//
// A key is "{prefix}:{" handler key ":" message ID "}", with ":" and the namespace
// of the ID behind it if it has one, and the characters %, :, { and } of each
// percent-encoded: inbox:{orders.bill:0190f3c4}. The braces
// are Redis Cluster's hash tag: the keys of all messages spread over all slots.
// A value is "claimed" with the claim's token or "processed" with that, the time
// and the message type.
package redisstore
