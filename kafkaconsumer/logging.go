package kafkaconsumer

import (
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
)

// kafkaLog hands kafka-go's lines to zap as debug output: what matters of them
// comes back as errors, and is logged once per change (contract 7.8).
type kafkaLog struct{ log *zap.Logger }

// Printf implements kafka.Logger.
func (l kafkaLog) Printf(format string, args ...any) {
	if entry := l.log.Check(zap.DebugLevel, "inbox: kafka client"); entry != nil {
		entry.Write(zap.String("text", fmt.Sprintf(format, args...)))
	}
}

// trouble is something that can be wrong for a while, with one or several
// sources (partitions). It is logged when it begins and when the last source
// is well again, however often it is met in between.
type trouble struct {
	log   *zap.Logger
	clock clock.Clock
	what  string

	mu      sync.Mutex
	sources map[any]struct{}
	err     error
	since   time.Time
}

// begin notes an error of a source, and logs it if all was well before.
func (t *trouble) begin(source any, err error, fields ...zap.Field) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sources == nil {
		t.sources = map[any]struct{}{}
	}
	t.sources[source] = struct{}{}
	first := t.err == nil
	t.err = err
	if first {
		t.since = t.clock.Now()
		t.log.Warn("inbox: "+t.what, append(fields, zap.Error(err))...)
	}
}

// end notes that a source is well again.
func (t *trouble) end(source any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sources, source)
	if t.err == nil || len(t.sources) > 0 {
		return
	}
	t.log.Info("inbox: over: "+t.what, zap.Duration("after", t.clock.Now().Sub(t.since)))
	t.err, t.since = nil, time.Time{}
}

// forget drops a source that is no more, which does not mean that all is well.
func (t *trouble) forget(source any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sources, source)
}

// clear forgets a trouble whose sources are all gone: whoever comes next says
// anew how things are.
func (t *trouble) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.sources) == 0 {
		t.err, t.since = nil, time.Time{}
	}
}

// current returns the last error and since when it lasts; nil if all is well.
func (t *trouble) current() (time.Time, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.since, t.err
}
