// Package engine runs one inbox. New builds its parts, such as acceptor, processor and cleaner, from what the root
// package declares; Start adds the consumers and runs all, until Stop; Health judges them. Calls that accept, process
// or clean up check the inbox's tables first.
package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/handlertx"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/logging"
	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/internal/registry"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/internal/synchronous"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/processor"
)

// Config is a declared inbox. The root package's Options say what its values mean.
type Config struct {
	Name     string
	DB       *gorm.DB
	Naming   models.Naming
	Registry *registry.Registry
	Channels []Channel

	Processor processor.Options
	Acceptor  acceptor.Options
	Cleanup   cleanup.Options

	Migrate          bool
	PortableSQL      bool
	Manual           bool // nothing runs in the background
	WarnWithoutInbox bool
	// EndApplication ends the application when a partition halts; nil leaves it running.
	EndApplication func() error

	SampleInterval time.Duration
	Limits         health.Limits // New sets PoisonWindow: five minutes, or a longer SampleInterval

	Backoff        func(errorCount int) time.Duration
	Middleware     []handler.Middleware
	Hooks          handler.Hooks
	Archive        cleanup.Archive
	Ops            func(o *ops.Options)
	Redactor       redaction.Redactor
	Sealer         handler.Sealer
	Logger         *zap.Logger
	Clock          clock.Clock
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
	Propagator     propagation.TextMapPropagator
}

// Engine is one inbox in this process. It is safe for concurrent use.
type Engine struct {
	cfg          Config
	store        store.Store
	sealer       sealing.Sealer
	counters     *telemetry.Counters
	instruments  *telemetry.Instruments
	sampler      *sampler
	acceptor     *acceptor.Acceptor
	processor    *processor.Processor
	cleaner      *cleanup.Cleaner
	running      *attempt.Running               // calls of handlers, in all delivery modes
	runners      map[string]*synchronous.Runner // of synchronous channels, by channel
	memories     memories
	ops          *ops.Ops // carries out requests for rejected messages
	tables       *tables
	log          *zap.Logger
	logLimit     *logging.Limiter
	requests     routine.Loop // carries out operators' requests for rejected messages, while started
	cancels      routine.Loop // cancels calls as requested, while started
	rereading    routine.Loop // reads topics again as requested, while started
	serving      routine.Loop // carries out all other requests, while started
	progress     routine.Loop // records consumers' progress, while started
	logSummaries routine.Loop // writes summaries of the log lines that the limiter has suppressed, while started

	again          again
	reading        sync.Map     // the names of channels that are read again
	shutdownOnce   sync.Once    // by EndApplication
	lifecycle      routine.Lock // held by Start and Stop throughout
	mu             sync.Mutex
	started        bool
	releaseSenders func()                    // of the start
	unwanted       bool                      // a Stop gave up waiting for the Start that runs
	consumers      []*kafkaconsumer.Consumer // of the current run
}

// New builds an engine. Nothing runs and nothing is read before Start. Check must have found nothing.
func New(cfg Config) (*Engine, error) {
	cfg.Limits.PoisonWindow = max(5*time.Minute, cfg.SampleInterval)
	e := &Engine{cfg: cfg, counters: cfg.counters(), lifecycle: routine.NewLock(),
		sealer: sealing.New(cfg.Sealer, cfg.Processor.StatementTimeout)}
	e.log, e.logLimit = logging.Limit(cfg.Logger, cfg.Redactor)
	e.log = e.log.With(zap.String(telemetry.FieldInbox, cfg.Name))
	e.tables, e.sampler = &tables{e: e, lock: routine.NewLock()}, &sampler{e: e}
	var err error
	if e.memories, err = cfg.newMemories(e.log); err != nil {
		return nil, err
	}
	if err = e.instrument(); err != nil {
		return nil, err
	}
	if e.store, err = stores.New(cfg.DB, cfg.Naming, store.Options{TestClock: clock.IsTest(cfg.Clock),
		Portable: cfg.PortableSQL}); err != nil {
		return nil, err
	}
	e.running = attempt.NewRunning(cfg.Clock.Now)
	e.processor, err = processor.New(processor.Config{Running: e.running, DB: cfg.DB, Store: e.store,
		Registry: cfg.Registry, Options: cfg.Processor, MaxRetries: cfg.maxRetries(), Namespaces: cfg.sharedNamespaces(),
		Clock: cfg.Clock, Logger: e.log, Counters: e.counters, Instruments: e.instruments, Hooks: cfg.Hooks,
		Middleware: cfg.Middleware, Backoff: cfg.Backoff, Report: e.report, Settings: e.settings(),
		Redactor: cfg.Redactor, Sealer: e.sealer})
	if err != nil {
		return nil, err
	}
	if e.acceptor, err = e.newAcceptor(); err != nil {
		return nil, err
	}
	e.cleaner, err = cleanup.New(cleanup.Config{Store: e.store, Options: cfg.Cleanup,
		Handlers: slices.Collect(cfg.Registry.Handlers()), Archive: cfg.Archive, Record: e.recordProgress,
		StatementTimeout: cfg.Processor.StatementTimeout,
		WorkerAge:        2*cfg.Processor.WorkerTimeout + cfg.Processor.UnknownKeyGrace, Clock: cfg.Clock, Logger: e.log,
		Instruments: e.instruments})
	if err != nil {
		return nil, err
	}
	e.runners = e.newRunners()
	for _, c := range cfg.Channels {
		if c.Sender != nil {
			c.Sender.log, c.Sender.clock = e.log.With(zap.String(telemetry.FieldChannel, c.Name)), cfg.Clock
		}
	}
	if e.ops, err = e.NewOps(); err != nil {
		return nil, err
	}
	handlertx.Reserve(cfg.DB)
	return e, nil
}

func (e *Engine) newAcceptor() (*acceptor.Acceptor, error) {
	cfg := e.cfg
	notifyTx := e.store.NotifyTx
	if !cfg.Processor.Listen {
		notifyTx = nil
	}
	return acceptor.New(acceptor.Config{Store: e.store, Registry: cfg.Registry, Channels: cfg.channelNames(),
		Namespaces: cfg.sharedNamespaces(), NotStored: cfg.synchronousChannels(), RunAgain: e.runAgain,
		Decoders: e.decoders(), Options: cfg.Acceptor, Own: cfg.ownPolicies(),
		StatementTimeout: cfg.Processor.StatementTimeout, Retention: cfg.Cleanup.Retention, Redactor: cfg.Redactor,
		Sealer: e.sealer,
		Clock:  cfg.Clock, Logger: e.log, Counters: e.counters, Instruments: e.instruments, Hooks: cfg.Hooks,
		Wake: func(keys []string) { e.processor.Wake(keys...) }, WakeAt: e.processor.WakeAt, NotifyTx: notifyTx,
		Reserve: func(wanted map[string]int, bytes int) acceptor.Reservation {
			if r := e.processor.Reserve(wanted, bytes); r != nil {
				return r
			}
			return nil
		}})
}

// counters makes counters with a series for each declared channel and handler.
func (cfg *Config) counters() *telemetry.Counters {
	var keys [][]string
	for h := range cfg.Registry.Handlers() {
		keys = append(keys, h.Keys())
	}
	return telemetry.NewCounters(cfg.channelNames(), keys)
}

// instrument makes the instruments. The counters are observed until the engine is garbage, so that the last collection,
// when the application ends its provider after Stop, has the final counts. Nothing that is observed may therefore refer
// to e.
func (e *Engine) instrument() error {
	var err error
	e.instruments, err = telemetry.New(telemetry.Config{Inbox: e.cfg.Name, Counters: e.counters,
		MeterProvider: e.cfg.MeterProvider, TracerProvider: e.cfg.TracerProvider, Propagator: e.cfg.Propagator,
		Redactor: e.cfg.Redactor})
	if err != nil {
		return err
	}
	runtime.AddCleanup(e, func(i *telemetry.Instruments) {
		_ = i.Close() // no caller is left to return it to
	}, e.instruments)
	return nil
}

// Check returns what the declaration's database does not support, and what the marker stores of Inline channels refuse.
// The rest of the declaration may be invalid.
func Check(cfg Config) error {
	if cfg.DB == nil {
		return errors.New("the *gorm.DB is nil")
	}
	var all []error
	level := cfg.Processor.TxIsolation
	if d, err := dialects.Of(cfg.DB); err == nil && dialects.RefusedIsolation(level) == "" {
		if allowed := d.RefusedIsolation(level); allowed != "" {
			all = append(all, fmt.Errorf("option TxIsolation = %s: must be %s on %s", level, allowed, d.Name))
		}
	}
	if cfg.Naming.Validate() != nil { // Options.Validate reports that
		cfg.Naming = models.Naming{Prefix: columns.DefaultPrefix}
	}
	if _, err := stores.New(cfg.DB, cfg.Naming, store.Options{}); err != nil {
		return errors.Join(append(all, err)...)
	}
	_, err := cfg.newMemories(zap.NewNop())
	return errors.Join(append(all, err)...)
}

// Accept persists messages, see acceptor.Acceptor.Accept.
func (e *Engine) Accept(ctx context.Context, messages ...handler.RawMessage) ([]acceptor.Result, error) {
	if err := e.tables.ready(ctx); err != nil {
		return nil, err
	}
	return e.acceptor.Accept(ctx, messages...)
}

// AcceptRejected accepts a rejected record again, see acceptor.Acceptor.AcceptRejected.
func (e *Engine) AcceptRejected(ctx context.Context, id string) ([]acceptor.Result, error) {
	if err := e.tables.ready(ctx); err != nil {
		return nil, err
	}
	return e.acceptor.AcceptRejected(ctx, id)
}

// AcceptTx persists messages in the caller's transaction, see acceptor.Acceptor.AcceptTx.
func (e *Engine) AcceptTx(ctx context.Context, tx *gorm.DB, messages ...handler.RawMessage) (*acceptor.Receipt, error) {
	if err := e.tables.checkTx(ctx, tx); err != nil {
		return nil, fmt.Errorf("accept in transaction: %w", err)
	}
	return e.acceptor.AcceptTx(ctx, tx, messages...)
}

// ProcessPending runs everything that is due now, see processor.Processor.ProcessPending.
func (e *Engine) ProcessPending(ctx context.Context) (processor.Drained, error) {
	defer e.logLimit.Flush()
	if err := e.tables.ready(ctx); err != nil {
		return processor.Drained{}, err
	}
	defer e.holdSenders()()
	return e.processor.ProcessPending(ctx)
}

// Cleanup deletes expired rows now, see cleanup.Cleaner.Clean.
func (e *Engine) Cleanup(ctx context.Context) (handler.Deleted, error) {
	if err := e.tables.ready(ctx); err != nil {
		return handler.Deleted{}, err
	}
	return e.cleaner.Clean(ctx)
}

// SetPaused pauses or resumes a handler.
func (e *Engine) SetPaused(ctx context.Context, key string, paused bool) error {
	h, known := e.cfg.Registry.Lookup(key)
	if !known {
		return fmt.Errorf("handler key %q is not registered", key)
	}
	if err := e.tables.ready(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Processor.StatementTimeout)
	defer cancel()
	keys := h.Keys() // a worker from before a rename only knows a legacy key
	if !paused {
		stored, err := e.store.Paused(ctx)
		if err != nil {
			return err
		}
		keys = slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return !slices.Contains(stored, key) })
	}
	for _, key := range keys {
		if err := e.store.SetPaused(ctx, key, paused, e.cfg.Clock.Now()); err != nil {
			return err
		}
	}
	return nil
}

// Counters returns what this process has counted since New.
func (e *Engine) Counters() handler.Counts { return e.counters.Snapshot() }

// Ops returns the operators' API that NewOps made without further options.
func (e *Engine) Ops() *ops.Ops { return e.ops }
