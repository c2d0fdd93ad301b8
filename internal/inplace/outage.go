package inplace

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/telemetry"
)

// reminder is how often an outage that lasts is logged again.
const reminder = 5 * time.Minute

// outage is what keeps attempts from being made or finished for a while, and is
// nobody's fault: a database, or a store of markers, that cannot be used. Each
// task that meets it is a source. It is logged when it begins, every reminder
// while it is met, and when the last source has got on (contract 7.8).
type outage struct {
	log   *zap.Logger
	clock clock.Clock

	mu      sync.Mutex
	sources map[*task]bool
	err     error // the last; nil if there is no outage
	since   time.Time
	over    time.Time // the last; zero if there was none
	told    time.Time
	met     int
}

const outageText = "the database, or the store of markers, cannot be used: attempts are repeated in place until it can"

func (o *outage) begin(source *task, err error, fields []zap.Field) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, first := o.clock.Now(), o.err == nil
	if first {
		o.sources, o.since, o.met = map[*task]bool{}, now, 0
	}
	o.sources[source], o.err = true, err
	o.met++
	switch {
	case first:
		o.log.Warn("inbox: "+outageText, append(fields, zap.Error(err))...)
	case now.Sub(o.told) >= reminder:
		o.log.Warn("inbox: still: "+outageText, append(fields, zap.Duration(telemetry.FieldAfter, now.Sub(o.since)), zap.Int(telemetry.FieldTimes, o.met), zap.Error(err))...)
	default:
		return
	}
	o.told = now
}

// end notes that an attempt of the source was not kept from its end.
func (o *outage) end(source *task) { o.leave(source, "over") }

// forget notes that the sources are not delivered here any more, which does not
// mean that all is well.
func (o *outage) forget(sources []*task) {
	for _, source := range sources {
		o.leave(source, "no longer met by this process")
	}
}

func (o *outage) leave(source *task, how string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.sources[source] {
		return
	}
	delete(o.sources, source)
	if len(o.sources) > 0 {
		return
	}
	o.log.Info("inbox: "+how+": "+outageText, zap.Duration(telemetry.FieldAfter, o.clock.Now().Sub(o.since)), zap.Int(telemetry.FieldTimes, o.met))
	o.err, o.over = nil, o.clock.Now()
}

func (o *outage) lastOver() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

// current returns what was met last; nil if all is well.
func (o *outage) current() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
