package workload

import (
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/processor"
)

// Settings configure one worker. Start from Quick.
type Settings struct {
	// DSN is the inbox's database.
	DSN string
	// EffectsDSN is the database connection that plain handlers use to record their runs. Empty
	// means DSN. A different route to the same database lets a handler write while its inbox is cut
	// off.
	EffectsDSN string
	// Brokers, Topic and Group make the channel consume Kafka. Without brokers it handles what is
	// accepted directly.
	Brokers []string
	Topic   string
	Group   string
	// Topics are further topics of jobs that the channel consumes.
	Topics []string
	// OutTopic, if not empty, is where the transactional handlers publish to, through the same brokers.
	OutTopic string

	// Generation, if not zero, declares the ordered handlers of that version of the program beside the
	// jobs' handlers.
	Generation Generation
	// Retention, if not zero, makes every worker delete what is older, each ten seconds.
	Retention time.Duration
	// CleansOnly makes the worker call Cleanup each second and do nothing else.
	CleansOnly bool
	// Mode is the inbox's processing mode. Empty means the database's default.
	Mode processor.Mode
	// Portable makes the store on PostgreSQL send portable statements alone.
	Portable bool
	// ClockOffset is how far this worker's own clock is ahead.
	ClockOffset time.Duration
	// machine, if not nil, is this worker's clock, which Worker.SetClock sets while it runs.
	machine *clock.Jumping
	// FleetConcurrency, if not zero, limits how many calls of the jobs' plain handler run at once in all workers.
	FleetConcurrency int
	// RetryDelay, if not zero, is the delay before the jobs' handlers are retried, without jitter.
	RetryDelay time.Duration

	Concurrency       int
	HeartbeatInterval time.Duration
	SweepInterval     time.Duration
	WorkerTimeout     time.Duration
	StatementTimeout  time.Duration
	StopBudget        time.Duration
	CommitInterval    time.Duration
	// SessionTimeout is the consumer's session timeout.
	SessionTimeout time.Duration
}

// Quick returns timings at which recovery takes seconds.
func Quick(dsn string) Settings {
	return Settings{
		DSN: dsn, Concurrency: 16,
		HeartbeatInterval: 300 * time.Millisecond, SweepInterval: 300 * time.Millisecond,
		WorkerTimeout:    1500 * time.Millisecond,
		StatementTimeout: 2 * time.Second, StopBudget: 3 * time.Second, CommitInterval: 100 * time.Millisecond,
		SessionTimeout: 3 * time.Second,
	}
}

// RecoveryBound is how soon after a worker's death its claims are due again elsewhere. It is
// WorkerTimeout plus two sweeps (contract 5.9) and the backoff of a release, which maxRetryDelay
// limits.
func (s Settings) RecoveryBound() time.Duration {
	return s.WorkerTimeout + 2*s.SweepInterval + maxRetryDelay
}

// StopDeadline is how long the worker's application may take to stop.
func (s Settings) StopDeadline() time.Duration { return 2*s.StopBudget + 4*time.Second }

// maxRetryDelay keeps retries from dominating a test's duration.
const maxRetryDelay = 200 * time.Millisecond

// pollingInterval is how soon a worker finds what another process accepted.
const pollingInterval = 100 * time.Millisecond

// cleanupInterval is the time between cleanups of a worker that only cleans. Others leave it most turns at the lease of
// cleanup.
const cleanupInterval = time.Second

// Options returns the inbox's options for these settings. MaxRetries is high because handlers fail
// whenever their database is down.
func (s Settings) Options(h *Handlers, log *zap.Logger) []inbox.Option {
	channel := []inbox.ChannelOption{inbox.On(JobType, inbox.Tx(EffectKey, h.RecordEffect, s.retries()...),
		inbox.Func(RunKey, h.LogRun, append(s.retries(), handler.FleetConcurrency(s.FleetConcurrency))...))}
	if s.Generation != 0 {
		channel = append(channel, s.laneOptions(h))
	}
	if len(s.Brokers) > 0 {
		channel = append(channel, inbox.Kafka(s.consumer()))
	}
	options := []inbox.Option{
		inbox.Configure(func(o *inbox.Options) {
			o.Logger = log
			o.PortableSQL = s.Portable
			o.Processor.Mode = s.Mode
			o.Processor.Concurrency = s.Concurrency
			o.Processor.MaxRetries = 50
			o.Processor.MaxRetryDelay = maxRetryDelay
			o.Processor.PollingInterval = pollingInterval
			o.Processor.HeartbeatInterval = s.HeartbeatInterval
			o.Processor.SweepInterval = s.SweepInterval
			o.Processor.WorkerTimeout = s.WorkerTimeout
			o.Processor.StatementTimeout = s.StatementTimeout
			o.Processor.StopBudget = s.StopBudget
			o.Cleanup.Retention = s.Retention
			o.Cleanup.CleanupInterval = 10 * cleanupInterval
			o.Clock = clock.Offset(s.ClockOffset)
			if s.machine != nil {
				o.Clock = s.machine
			}
			if len(s.Topics) > 0 { // which a test creates again
				o.Acceptor.OnGap = acceptor.GapContinue
			}
		}), inbox.Channel(Channel, channel...),
	}
	if s.publishes() {
		options = append(options, s.outgoing())
	}
	return options
}

func (s Settings) publishes() bool { return s.OutTopic != "" && len(s.Brokers) > 0 }

func (s Settings) retries() []handler.Option {
	if s.RetryDelay == 0 {
		return nil
	}
	return []handler.Option{handler.Backoff(func(int) time.Duration { return s.RetryDelay })}
}

func (s Settings) consumer() kafkaconsumer.Config {
	return kafkaconsumer.Config{
		Brokers: s.Brokers, Topics: append([]string{s.Topic}, s.Topics...), GroupID: s.Group,
		Decoder:        envelope.DecoderConfig{Type: JobType, Source: "endtoend"},
		CommitInterval: s.CommitInterval,
		SessionTimeout: s.SessionTimeout, HeartbeatInterval: 300 * time.Millisecond, RebalanceTimeout: 10 * time.Second,
		WatchInterval: time.Second, FetchMaxWait: 200 * time.Millisecond,
		DialTimeout: 2 * time.Second, RequestTimeout: 3 * time.Second,
	}
}
