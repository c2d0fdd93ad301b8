// Package ours runs the module under test as its users do, through its public API.
package ours

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkapublisher"
)

// Channel and Type are those of all messages.
const (
	Channel = "bench"
	Type    = "bench.message"
)

// Inbox is an inbox with a database of its own.
type Inbox struct {
	*inbox.Inbox
	DB *gorm.DB
	// Handled counts the handler calls of this process. Trials with worker processes on the same
	// tables add the calls of those.
	Handled atomic.Int64
}

// Open opens an inbox whose handlers do nothing. It is migrated and not started. Further options
// are what a trial measures.
func Open(ctx context.Context, dsn string, handlers int, options ...inbox.Option) (*Inbox, error) {
	ib := &Inbox{}
	return ib, ib.open(ctx, dsn, ib.handlers(handlers), options...)
}

func (ib *Inbox) handlers(n int) []*inbox.HandlerSpec {
	specs := make([]*inbox.HandlerSpec, n)
	for i := range specs {
		specs[i] = inbox.Func(fmt.Sprintf("bench-handler-%d", i+1), func(context.Context, handler.Message[[]byte]) error {
			ib.Handled.Add(1)
			return nil
		})
	}
	return specs
}

// OpenWith is like Open with the caller's own handlers. Each must report its calls.
func OpenWith(
	ctx context.Context, dsn string, specs func(called func()) []*inbox.HandlerSpec, options ...inbox.Option,
) (*Inbox, error) {
	ib := &Inbox{}
	return ib, ib.open(ctx, dsn, specs(func() { ib.Handled.Add(1) }), options...)
}

func (ib *Inbox) open(
	ctx context.Context, dsn string, specs []*inbox.HandlerSpec, options ...inbox.Option,
) (err error) {
	return ib.openOn(ctx, Dialector(dsn), []inbox.ChannelOption{inbox.On(Type, specs...)}, options...)
}

// OpenOutgoing opens an inbox whose only channel publishes to a topic.
func OpenOutgoing(
	ctx context.Context, dsn string, brokers []string, topic string, options ...inbox.Option,
) (*Inbox, error) {
	ib := &Inbox{}
	return ib, ib.openDeclared(ctx, Dialector(dsn), append([]inbox.Option{inbox.Outgoing(Channel,
		inbox.ToKafka(kafkapublisher.Config{Brokers: brokers, Topic: topic}))}, options...)...)
}

func (ib *Inbox) openOn(
	ctx context.Context, database gorm.Dialector, channel []inbox.ChannelOption, options ...inbox.Option,
) (err error) {
	return ib.openDeclared(ctx, database, append([]inbox.Option{inbox.Channel(Channel, channel...)}, options...)...)
}

func (ib *Inbox) openDeclared(ctx context.Context, database gorm.Dialector, options ...inbox.Option) (err error) {
	if ib.DB, err = gorm.Open(database, &gorm.Config{Logger: logger.Discard}); err != nil {
		return err
	}
	pool, err := ib.DB.DB()
	if err != nil {
		return err
	}
	// database/sql keeps two idle connections by default. With more in use at once, it would open
	// and close them all the time.
	pool.SetMaxIdleConns(64)
	options = append([]inbox.Option{inbox.Configure(func(o *inbox.Options) { o.Migrate = true })}, options...)
	if ib.Inbox, err = inbox.New("bench", ib.DB, options...); err != nil {
		return err
	}
	return ib.Migrate(ctx)
}

// Close stops the inbox and closes the pool.
func (ib *Inbox) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = ib.Stop(ctx)
	if pool, err := ib.DB.DB(); err == nil {
		_ = pool.Close()
	}
}

// AcceptAll accepts messages in batches on several connections at once.
func (ib *Inbox) AcceptAll(ctx context.Context, messages []handler.RawMessage, batch, connections int) error {
	batches := make(chan []handler.RawMessage)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for range connections {
		running.Add(1)
		go func() {
			defer running.Done()
			for b := range batches {
				if _, err := ib.Accept(ctx, b...); err != nil {
					cancel(err)
				}
			}
		}()
	}
	for len(messages) > 0 && ctx.Err() == nil {
		n := min(batch, len(messages))
		batches <- messages[:n]
		messages = messages[n:]
	}
	close(batches)
	running.Wait()
	return context.Cause(ctx)
}

// Completed waits until that many statuses are stored as completed.
func (ib *Inbox) Completed(ctx context.Context, n int) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for ib.Counters().Processed < int64(n) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d completed: %w", ib.Counters().Processed, n, ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}

// once selects statuses that were completed by their first attempt. The accept, the claim and the
// completion make version 3, or 2 if the accept dispatched the status directly. A second claim
// would have made it larger.
const once = `completed_at IS NOT NULL AND error_count = 0 AND outcome = 'processed' AND version <= 3`

// Disk returns the bytes that messages and statuses take on disk, with their indexes.
func (ib *Inbox) Disk(ctx context.Context) (bytes float64, err error) {
	if ib.DB.Name() == "mysql" { // by the last ANALYZE, which is a little old
		err = ib.DB.WithContext(ctx).Raw(`SELECT SUM(data_length + index_length) FROM information_schema.tables
			WHERE table_schema = DATABASE() AND table_name IN (?, ?)`, ib.Tables().Messages(), ib.Tables().HandlerStatuses()).
			Scan(&bytes).Error
		return bytes, err
	}
	err = ib.DB.WithContext(ctx).Raw("SELECT pg_total_relation_size(?::regclass) + pg_total_relation_size(?::regclass)",
		ib.Tables().Messages(), ib.Tables().HandlerStatuses()).Scan(&bytes).Error
	return bytes, err
}

// checkHandled returns an error unless handlers were called n times.
func (ib *Inbox) checkHandled(n int) error {
	if called := ib.Handled.Load(); called != int64(n) {
		return fmt.Errorf("handlers were called %d times, expected %d", called, n)
	}
	return nil
}

// CheckStored returns an error unless the tables have these numbers of messages, statuses and
// completed statuses, each completed by one attempt and one handler call.
func (ib *Inbox) CheckStored(ctx context.Context, messages, statuses, completed int) error {
	var m, s, c int64
	db := ib.DB.WithContext(ctx)
	for _, count := range []struct {
		query *gorm.DB
		into  *int64
	}{
		{db.Table(ib.Tables().Messages()), &m},
		{db.Table(ib.Tables().HandlerStatuses()), &s},
		{db.Table(ib.Tables().HandlerStatuses()).Where(once), &c},
	} {
		if err := count.query.Count(count.into).Error; err != nil {
			return err
		}
	}
	if m != int64(messages) || s != int64(statuses) || c != int64(completed) {
		return fmt.Errorf("messages %d, statuses %d, completed %d; expected %d, %d, %d", m, s, c, messages, statuses,
			completed)
	}
	return ib.checkHandled(completed)
}
