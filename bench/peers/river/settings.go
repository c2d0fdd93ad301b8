// Package river runs River (github.com/riverqueue/river) as its users do, with its client on the
// tables and indexes of its own migrations.
package river

import "time"

// Settings are what differs between trials. Everything else has River's defaults.
type Settings struct {
	Workers        int           // QueueConfig.MaxWorkers
	Cooldown, Poll time.Duration // FetchCooldown and FetchPollInterval; 0 is River's default
	Connections    int           // of the pool; 0 is pgx's default, four on small machines
	// Transactional workers write an effect and complete their job in one transaction, with
	// JobCompleteTx.
	Transactional bool
	// Started is called with each job's payload when its worker starts. It may be nil.
	Started func(payload []byte)
}

// Bench returns the settings of River's own benchmark ("river bench",
// cmd/river/riverbench/river_bench.go): FetchCooldown 2 ms, FetchPollInterval 20 ms. Its source
// says that roughly 1,000 workers did best, that 500 and 2,000 did a little worse, and it runs
// 2,000. Measure which of the three is best here. Its pool is pgx's default, too. Larger pools were
// no faster.
func Bench(workers int) Settings {
	return Settings{Workers: workers, Cooldown: 2 * time.Millisecond, Poll: 20 * time.Millisecond}
}

// Default returns the settings of River's first example (doc.go): 100 workers and defaults.
func Default() Settings { return Settings{Workers: 100} }

// Tx returns settings for workers with a transaction each, as in
// example_complete_job_within_tx_test.go. There is a connection for every worker and some for River
// itself. Fetching is as in Bench.
func Tx(workers int) Settings {
	s := Bench(workers)
	s.Connections, s.Transactional = workers+8, true
	return s
}
