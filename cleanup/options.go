package cleanup

import (
	"fmt"
	"time"
)

// Options configure a Cleaner. Start from DefaultOptions.
type Options struct {
	// Retention is how long completed statuses, and messages without
	// statuses, are kept; 0 keeps them for ever. It is also the time within
	// which a redelivery is recognised, so it must be longer than any the
	// producer or the broker may cause. Default 0.
	Retention time.Duration `yaml:"retention" env:"RETENTION"`
	// CleanupInterval is the time between runs; the first comes one interval
	// after start. Default 1 h.
	CleanupInterval time.Duration `yaml:"cleanup_interval" env:"CLEANUP_INTERVAL"`
	// CleanupBatchSize bounds the rows of one transaction. Default 10,000.
	CleanupBatchSize int `yaml:"cleanup_batch_size" env:"CLEANUP_BATCH_SIZE"`
	// SweepMarkers deletes inline markers that have expired. Off, they stay
	// until something else sweeps them (contract 8.4). Default off.
	SweepMarkers bool `yaml:"sweep_markers" env:"SWEEP_MARKERS"`
	// AuditRetention is how long audit rows are kept; 0, the default, keeps
	// them for ever.
	AuditRetention time.Duration `yaml:"audit_retention" env:"AUDIT_RETENTION"`
	// RejectedRetention is how long rejected messages are kept; 0, the
	// default, keeps them for ever.
	RejectedRetention time.Duration `yaml:"rejected_retention" env:"REJECTED_RETENTION"`
	// ArchiveTimeout limits each call of the archive function. Default 1 m.
	ArchiveTimeout time.Duration `yaml:"archive_timeout" env:"ARCHIVE_TIMEOUT"`
}

// DefaultOptions returns the defaults of contract 9 for an inbox.
func DefaultOptions() Options {
	return Options{CleanupInterval: time.Hour, CleanupBatchSize: 10_000, ArchiveTimeout: time.Minute}
}

// lockName is the lease that lets one worker clean at a time.
const lockName = "cleanup"

// Validate reports every option that is out of range, by name, with its value
// and what is allowed.
func (o Options) Validate() []error {
	var problems []error
	refuse := func(name string, value any, allowed string) {
		problems = append(problems, fmt.Errorf("option %s is %v, allowed is %s", name, value, allowed))
	}
	if o.Retention < 0 {
		refuse("Retention", o.Retention, "0 (for ever) or more")
	}
	if o.CleanupInterval <= 0 {
		refuse("CleanupInterval", o.CleanupInterval, "more than 0")
	}
	if o.CleanupBatchSize < 1 {
		refuse("CleanupBatchSize", o.CleanupBatchSize, "1 or more")
	}
	if o.AuditRetention < 0 {
		refuse("AuditRetention", o.AuditRetention, "0 (for ever) or more")
	}
	if o.RejectedRetention < 0 {
		refuse("RejectedRetention", o.RejectedRetention, "0 (for ever) or more")
	}
	if o.ArchiveTimeout <= 0 {
		refuse("ArchiveTimeout", o.ArchiveTimeout, "more than 0")
	}
	return problems
}
