package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
	"github.com/gorm-inbox/inbox/idempotent/redisstore"
	"github.com/gorm-inbox/inbox/integration/simulation/broker"
	"github.com/gorm-inbox/inbox/integration/simulation/database"
	simulated "github.com/gorm-inbox/inbox/integration/simulation/store"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// place is where a process runs. One process after the other runs there.
type place struct {
	w       *world
	name    string
	byHand  bool // its processes are not started: they accept, and run what is due when they are asked to
	version atomic.Int32

	commands chan func() // run one after the other
	now      atomic.Pointer[process]
	lives    int

	databaseFaults, cacheFaults, brokerFaults faults
}

// process is one process, from its start to its end.
type process struct {
	*place
	name    string
	version int32
	inbox   *inbox.Inbox
	close   func() error
	network *broker.Client
	dead    atomic.Bool
	life    context.Context // ends with it
	die     context.CancelFunc
}

func (w *world) newPlace(name string, byHand bool) *place {
	p := &place{w: w, name: name, byHand: byHand, commands: make(chan func(), 1000)}
	p.databaseFaults, p.cacheFaults = faults{what: "database", place: name}, faults{what: "cache", place: name}
	p.brokerFaults = faults{what: "broker", place: name}
	w.working.Go(func() {
		for command := range p.commands {
			command()
		}
	})
	return p
}

// start starts a process and tries again until it runs, or must run no more.
func (p *place) start() {
	for p.now.Load() == nil {
		p.w.disturb(0)
		p.lives++
		s := &process{place: p, name: fmt.Sprintf("%s.%d", p.name, p.lives), version: p.version.Load()}
		s.life, s.die = context.WithCancel(context.Background())
		s.network = p.w.broker.Client(func(ctx context.Context, request string, do func() error) error {
			return s.carry(ctx, &p.brokerFaults, request, broker.ErrSilent, do)
		})
		err := s.open()
		if err == nil {
			p.now.Store(s) // visible before it starts, so that it can be killed meanwhile
		}
		if err == nil && !p.byHand {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			err = s.inbox.Start(ctx)
			cancel()
		}
		p.w.disturb(0)
		if err == nil && !s.dead.Load() {
			p.w.note("%s runs, version %d", s.name, s.version)
			if s.version%2 == 1 {
				p.w.renamed.Store(true)
			}
			return
		}
		p.w.note("%s does not start: %v", s.name, err)
		s.kill("its start has failed")
		<-time.After(3 * time.Second)
	}
}

// stop stops the process gracefully.
func (p *place) stop() {
	s := p.now.Load()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	err := s.inbox.Stop(ctx)
	p.w.note("%s has stopped: %v", s.name, err)
	if !p.now.CompareAndSwap(s, nil) {
		return // it was killed
	}
	if err != nil { // a supervisor kills it then
		s.kill("it has not stopped in time")
		return
	}
	p.w.judgeStopped(s)
	p.w.judgeStates()
	s.dead.Store(true) // also for handlers that still run
	s.die()
	s.end()
}

// kill ends the process at once. Its goroutines end, but can reach nothing any more.
func (p *place) kill() {
	if s := p.now.Swap(nil); s != nil {
		s.kill("it is killed")
	}
}

func (s *process) kill(why string) {
	s.now.CompareAndSwap(s, nil)
	if s.dead.Swap(true) {
		return
	}
	s.die()
	s.w.note("%s ends: %s", s.name, why)
	s.w.deaths.Add(1)
	s.w.disturb(0)
	s.network.Kill()
	s.w.working.Go(func() {
		if s.inbox != nil {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = s.inbox.Stop(ctx) // ends its goroutines; what it sends goes nowhere
		}
		s.end()
	})
}

// drain accepts a message and runs what is due, but no longer than that lasts.
func (p *place) drain(id string, lasts time.Duration) {
	s := p.now.Load()
	if s == nil {
		return
	}
	s.accept(id, 0)
	ctx, cancel := context.WithTimeout(s.life, lasts)
	defer cancel()
	drained, err := s.inbox.ProcessPending(ctx)
	p.w.note("%s has drained: %+v: %v", s.name, drained, err)
}

// end closes the pool, once handlers that ignore their contexts have returned.
func (s *process) end() {
	s.w.working.Go(func() {
		<-time.After(longest + time.Minute)
		if s.close != nil {
			if err := s.close(); err != nil && !s.dead.Load() {
				s.w.note("%s closes its pool: %v", s.name, err)
			}
		}
	})
}

// open makes the inbox of one version of the program.
func (s *process) open() error {
	link := func(ctx context.Context, text string, do func() error) error {
		return s.carry(ctx, &s.databaseFaults, text, database.ErrSilent, do)
	}
	db, err := gorm.Open(simulated.Open(s.w.database, s.name, link), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return err
	}
	pool, err := db.DB()
	if err != nil {
		return err
	}
	pool.SetMaxOpenConns(20)
	s.close = pool.Close
	memory, err := memstore.New() // it forgets when the process ends
	if err != nil {
		return err
	}
	cache, err := redisstore.New(cacheClient{process: s})
	if err != nil {
		return err
	}
	named := func(key string) (string, []handler.Option) {
		if s.version%2 == 0 {
			return key, nil
		}
		return key + "-2", []handler.Option{handler.LegacyKeys(key)}
	}
	score, _ := named("score")
	greet, _ := named("greet")
	tx := func(key string, more ...handler.Option) *inbox.HandlerSpec {
		now, options := named(key)
		return inbox.Tx(now, func(ctx context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
			return s.handle(ctx, key, m, tx)
		}, append(options, more...)...)
	}
	plain := func(key string, more ...handler.Option) *inbox.HandlerSpec {
		now, options := named(key)
		return inbox.Func(now, func(ctx context.Context, m handler.Message[[]byte]) error {
			return s.handle(ctx, key, m, nil)
		}, append(options, more...)...)
	}
	consumed := func(topic string) inbox.ChannelOption {
		return inbox.Kafka(kafkaconsumer.Config{Brokers: s.w.broker.Addresses(), Topics: []string{topic},
			GroupID: groupOf(topic), Dial: s.network.Dial,
			// Idle consumers ask seldom, so that more can happen in the same time.
			FetchMaxWait: 5 * time.Second, HeartbeatInterval: 8 * time.Second, SessionTimeout: 25 * time.Second,
			Decoder: envelope.DecoderConfig{Type: "t"}})
	}
	policies := func(topic string) inbox.ChannelOption {
		return inbox.ConfigureChannel(func(o *inbox.ChannelOptions) {
			if s.w.plan.halts(topic) {
				o.Acceptor.BadRecords = acceptor.BadRecordHalt
			}
			if s.w.plan.continues(topic) {
				o.Acceptor.OnGap = acceptor.GapContinue
			}
		})
	}
	booking := []*inbox.HandlerSpec{tx("book"), plain("mail", handler.FleetConcurrency(mails)), tx("ship", handler.Ordered())}
	if s.version%2 == 1 {
		booking = append(booking, tx(added, s.w.plan.kept()...))
	}
	s.inbox, err = inbox.New("simulated", db,
		inbox.Configure(func(o *inbox.Options) {
			o.Logger = zap.NewNop()
			o.Migrate = true
			o.Clock = clock.Offset(s.w.skew(s.name))
			o.Processor.MaxRetries = 3
			o.Processor.MaxRetryDelay = time.Minute
			o.Processor.HandlerTimeout = 30 * time.Second
			o.SampleInterval = time.Minute
			o.Cleanup.Retention = retention
			o.Cleanup.CleanupInterval = 30 * time.Second
			o.Cleanup.SweepMarkers = true
		}),
		inbox.Channel(orders, consumed(orders), policies(orders), inbox.On("t", booking...)),
		inbox.Channel(payments, consumed(payments), policies(payments),
			inbox.On("t", tx("charge"), plain("score"), plain("greet")),
			inbox.Inline(inbox.InlineHandler(score, cache), inbox.InlineHandler(greet, memory))),
		inbox.Channel(hints, consumed(hints), policies(hints), inbox.Direct(), inbox.On("t", plain("hint"))),
		s.outgoing(),
	)
	return err
}

func groupOf(topic string) string { return "group of " + topic }

// longest is how long a handler may ignore its context.
const longest = 3 * time.Minute

// handle is the body of all handlers. Those with a transaction write their effect in it.
func (s *process) handle(ctx context.Context, key string, m handler.Message[[]byte], tx *gorm.DB) error {
	w := s.w
	run := w.begin(s, key, m.ID)
	w.note("%s: %s %s, attempt %d: %s", s.name, key, m.ID, m.Attempt, run.does)
	if tx != nil {
		err := tx.Exec(`INSERT INTO effects (run, handler, message) VALUES (?, ?, ?)`, run.id, key, m.ID).Error
		if err != nil {
			return run.end(err)
		}
	}
	if key == "ship" {
		if err := s.ship(ctx, tx, m); err != nil {
			return run.end(err)
		}
	}
	if run.does == panics {
		_ = run.end(errors.New("panic"))
		panic("it panics")
	}
	return run.end(s.attempt(ctx, run))
}

// attempt does what the run is to do, but for panicking.
func (s *process) attempt(ctx context.Context, run *run) error {
	switch run.does {
	case fail:
		return errors.New("no success")
	case slow:
		routine.Sleep(ctx, time.Duration(1+s.w.plan.chance(20, "slow", run.id))*time.Second)
	case hang:
		<-ctx.Done()
	case ignore:
		<-time.After(time.Duration(1+s.w.plan.chance(int(longest/time.Second), "ignore", run.id)) * time.Second)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.dead.Load() {
		return errors.New("its process is dead")
	}
	return nil
}

// faults are what befalls the calls of a place while they last.
type faults struct {
	what  string // they are calls of
	place string

	mu      sync.Mutex
	until   time.Time // the faults end
	rate    int
	silent  bool
	stalled time.Time // until when nothing goes on
	refused time.Time // until when calls with one of these texts fail
	texts   []string
	calls   int

	muted    func() // called when the answer to a claim is lost; nil unless it is to be
	claiming bool   // so that the next commit is that of a claim
}

func (f *faults) begin(rate int, silent bool, lasts time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rate, f.silent, f.until = rate, silent, time.Now().Add(lasts)
}

// mute loses the answer to the next claim, and calls then when it does. With nil it loses none any more.
func (f *faults) mute(then func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.muted, f.claiming = then, false
}

// mutes reports whether the answer to a call is that to a claim, and to be lost. The lock is held.
func (f *faults) mutes(call string) bool {
	if f.muted == nil || call != "COMMIT" || !f.claiming {
		f.claiming = f.claiming || strings.Contains(call, "SET processing_started_at = ?1, worker_id = ")
		return false
	}
	f.muted()
	f.muted = nil
	return true
}

func (f *faults) stall(lasts time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stalled = time.Now().Add(lasts)
}

// refuse fails the calls that contain one of the texts.
func (f *faults) refuse(lasts time.Duration, texts ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused, f.texts = time.Now().Add(lasts), texts
}

func (f *faults) refuses(request string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Before(f.refused) &&
		slices.ContainsFunc(f.texts, func(text string) bool { return strings.Contains(request, text) })
}

// answerLost is a fault's lot.
const answerLost = 99

// fault is what befalls a call.
type fault struct {
	call   int // its number among those while faults last
	lot    int // below 100; negative if nothing happens
	silent bool
	wait   time.Duration // until the process is no longer stalled
}

func (f *faults) next(w *world, call string) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	its := fault{lot: -1, silent: f.silent, wait: time.Until(f.stalled)}
	if f.mutes(call) {
		its.lot, its.silent = answerLost, false
		return its
	}
	if !time.Now().Before(f.until) {
		return its
	}
	f.calls++
	its.call = f.calls
	if w.plan.chance(100, f.what, f.place, f.calls) < f.rate {
		its.lot = w.plan.chance(100, "lot", f.what, f.place, f.calls)
	}
	return its
}

// carry carries a call of the process to the database or a broker.
func (s *process) carry(ctx context.Context, f *faults, what string, silence error, do func() error) error {
	if f.refuses(what) {
		s.w.count(f.what, "refused")
		return io.ErrUnexpectedEOF
	}
	its := f.next(s.w, what)
	if s.pause(ctx, its.wait); its.wait > 0 && ctx.Err() != nil {
		s.w.count(f.what, "stalled for too long")
		return silence
	}
	s.pause(ctx, time.Duration(s.w.plan.chance(2000, what, f.place))*time.Microsecond)
	answered := func() error {
		if s.dead.Load() {
			return io.ErrUnexpectedEOF
		}
		err := do()
		if s.dead.Load() {
			return errors.Join(err, io.ErrUnexpectedEOF)
		}
		return err
	}
	upTo := func(d time.Duration, about string) time.Duration {
		return time.Duration(1 + s.w.plan.chance(int(d), about, f.what, f.place, its.call))
	}
	switch lot := its.lot; {
	case lot < 0:
		return answered()
	case lot < 50:
		s.w.count(f.what, "delayed")
		s.pause(ctx, upTo(15*time.Second, "before"))
		err := answered()
		s.pause(ctx, upTo(3*time.Second, "after"))
		return err
	case its.silent && lot < 75:
		s.w.count(f.what, "lost silently")
		s.pause(ctx, 2*time.Minute)
		return silence
	case its.silent:
		s.w.count(f.what, "answer lost silently")
		_ = answered()
		s.pause(ctx, 2*time.Minute)
		return silence
	case lot < 75:
		s.w.count(f.what, "failed")
		return io.ErrUnexpectedEOF
	default:
		s.w.count(f.what, "answer lost")
		return errors.Join(answered(), io.ErrUnexpectedEOF)
	}
}

// pause waits, but no longer than the call or the process lasts.
func (s *process) pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	case <-s.life.Done():
	}
}
