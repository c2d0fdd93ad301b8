package cleanup

import (
	"fmt"
	"time"
)

// Options say what an inbox keeps, and for how long. Start from DefaultOptions: zero values are values.
type Options struct {
	// Retention is how long completed statuses and finished messages are kept; 0 keeps
	// them forever. It is also how far back duplicates are recognised: do not set it
	// below the longest time after which a message may come again. Default 0.
	Retention time.Duration `yaml:"retention" env:"RETENTION"`
	// CleanupInterval is the time between cleanups; the first comes one interval after
	// start. Do not shorten it to keep tables small: Retention does that. Default 1 h.
	CleanupInterval time.Duration `yaml:"cleanup_interval" env:"CLEANUP_INTERVAL"`
	// CleanupBatchSize bounds the rows that one cleanup transaction reads. Do not raise
	// it on a busy database. Default 10,000.
	CleanupBatchSize int `yaml:"cleanup_batch_size" env:"CLEANUP_BATCH_SIZE"`
	// PartitionInterval is how long a partition takes new messages, if the tables are partitioned: a cleanup begins the
	// next one after that. Do not set it to less than a tenth of the longest retention: each claim looks into all
	// partitions. Default 0: an eighth of the longest retention (contract 6.8).
	PartitionInterval time.Duration `yaml:"partition_interval" env:"PARTITION_INTERVAL"`
	// SweepMarkers deletes the markers of Inline channels, and of a gormstore on the inbox's tables, once they have
	// expired. It keeps those that unread records of Inline channels may need. Do not use it where the marker store is
	// swept by other means, or where redeliveries may come later than the handlers' retention. Default off (contract
	// 6.5, 6.6, 8.4).
	SweepMarkers bool `yaml:"sweep_markers" env:"SWEEP_MARKERS"`
	// AuditRetention deletes audit rows that are older. Do not set it where someone must be able to find out later who
	// did what. Default 0, which keeps them forever (contract 6.6).
	AuditRetention time.Duration `yaml:"audit_retention" env:"AUDIT_RETENTION"`
	// RejectedRetention deletes rejected messages that are older, whether or not anybody has looked at them. Do not set it
	// unless their loss is acceptable: their offsets are committed, so they are nowhere else. Default 0, which keeps them
	// forever (contract 6.6).
	RejectedRetention time.Duration `yaml:"rejected_retention" env:"REJECTED_RETENTION"`
	// ArchiveTimeout limits each call of the archive function. Do not set it below what
	// the function needs for 500 messages: it would never succeed. Default 1 m.
	ArchiveTimeout time.Duration `yaml:"archive_timeout" env:"ARCHIVE_TIMEOUT"`
}

// DefaultOptions returns the defaults of contract 9 for an inbox.
func DefaultOptions() Options {
	return Options{CleanupInterval: time.Hour, CleanupBatchSize: 10_000, ArchiveTimeout: time.Minute}
}

// lockName is the lease that lets one worker clean at a time.
const lockName = "cleanup"

// Validate reports every option that is out of range, by name, with its value and what is allowed.
func (o Options) Validate() []error {
	var problems []error
	check := func(name string, value any, fine bool, allowed string) {
		if !fine {
			problems = append(problems, fmt.Errorf("option %s = %v: must be %s", name, value, allowed))
		}
	}
	check("Retention", o.Retention, o.Retention >= 0, "0 (forever) or more")
	check("CleanupInterval", o.CleanupInterval, o.CleanupInterval > 0, "more than 0")
	check("CleanupBatchSize", o.CleanupBatchSize, o.CleanupBatchSize >= 1, "1 or more")
	check("PartitionInterval", o.PartitionInterval, o.PartitionInterval >= 0, "0 (an eighth of the longest retention) or more")
	check("AuditRetention", o.AuditRetention, o.AuditRetention >= 0, "0 (forever) or more")
	check("RejectedRetention", o.RejectedRetention, o.RejectedRetention >= 0, "0 (forever) or more")
	check("ArchiveTimeout", o.ArchiveTimeout, o.ArchiveTimeout > 0, "more than 0")
	return problems
}
