package groups

import "github.com/gorm-inbox/inbox/bench/trial"

// All returns all groups, in the order of docs/benchmarks.md.
func All() []trial.Group {
	return []trial.Group{
		Accept(),
		Accept3(),
		Process(),
		Transactional(),
		EndToEnd(),
		Latency(),
		Kafka(),
		Outgoing(),
		Big(),
		Waiting(),
		Limits(),
		Tenants(),
		Ordered(),
		Recovery(),
		Xmin(),
		Portable(),
		Cleanup(),
		Partitions(),
		Operations(),
		ManyOperations(),
		Workers(),
		MariaDB(),
		SQLite(),
		Idempotent(),
		IdempotentRedis(),
	}
}
