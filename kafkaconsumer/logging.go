package kafkaconsumer

import (
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/telemetry"
)

// kafkaLog hands kafka-go's lines to zap as debug output: what matters of them
// comes back as errors, and is logged once per change (contract 7.8).
type kafkaLog struct{ log *zap.Logger }

// Printf implements kafka.Logger.
func (l kafkaLog) Printf(format string, args ...any) {
	if entry := l.log.Check(zap.DebugLevel, "inbox: kafka client"); entry != nil {
		entry.Write(zap.String(telemetry.FieldText, fmt.Sprintf(format, args...)))
	}
}

// reminder is how often a trouble that lasts is logged again.
const reminder = 5 * time.Minute

// trouble is something that can be wrong for a while, with one or several
// sources (partitions). It is logged when it begins, every reminder while it
// is met, and when the last source is well again (contract 7.8).
type trouble struct {
	log   *zap.Logger
	clock clock.Clock
	what  string

	mu      sync.Mutex
	sources map[any]struct{}
	err     error
	since   time.Time
	told    time.Time // when it was logged last
	met     int       // since it began
	over    time.Time // when it ended last
}

// begin notes an error of a source, and logs it if all was well before, or if
// it was logged long ago.
func (t *trouble) begin(source any, err error, fields ...zap.Field) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sources == nil {
		t.sources = map[any]struct{}{}
	}
	t.sources[source] = struct{}{}
	now, first := t.clock.Now(), t.err == nil
	t.err = err
	if first {
		t.since, t.met = now, 0
	}
	t.met++
	switch {
	case first:
		t.told = now
		t.log.Warn("inbox: "+t.what, append(fields, zap.Error(err))...)
	case now.Sub(t.told) >= reminder:
		t.told = now
		t.log.Warn("inbox: still: "+t.what, append(fields, zap.Duration(telemetry.FieldAfter, now.Sub(t.since)), zap.Int(telemetry.FieldTimes, t.met), zap.Error(err))...)
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
	t.over = t.clock.Now()
	t.log.Info("inbox: over: "+t.what, zap.Duration(telemetry.FieldAfter, t.over.Sub(t.since)), zap.Int(telemetry.FieldTimes, t.met))
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
	if t.err == nil || len(t.sources) > 0 {
		return
	}
	t.log.Info("inbox: no longer with this member: "+t.what, zap.Duration(telemetry.FieldAfter, t.clock.Now().Sub(t.since)), zap.Int(telemetry.FieldTimes, t.met))
	t.err, t.since = nil, time.Time{}
}

// current returns the last error and since when it lasts; nil if all is well.
func (t *trouble) current() (time.Time, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.since, t.err
}

// troubledUntil is now while the trouble lasts, and else when it was over last;
// zero if it never was.
func (t *trouble) troubledUntil() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return t.clock.Now()
	}
	return t.over
}
