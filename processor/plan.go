package processor

import "github.com/gorm-inbox/inbox/handler"

// share is one handler's share of the work in this process.
type share struct {
	handler *handler.Handler
	queue   []*attempt // claimed, not started
	running int
	stuck   int // runs that ignore their cancelled context; they hold no slot
	// more is true while the database may have due statuses for the handler.
	more   bool
	asked  bool // when its next status comes due has been asked since the last look
	paused bool
}

func (s *share) busy() int { return s.running + len(s.queue) }

// board is what the loop knows: every handler's share and the limits. It
// belongs to the loop's goroutine.
type board struct {
	shares      []*share
	byHandler   map[*handler.Handler]*share
	concurrency int
	prefetch    int
	batchSize   int
	turn        int // where the next round of claiming and starting begins
}

func newBoard(registry *handler.Registry, opts Options) *board {
	b := &board{byHandler: map[*handler.Handler]*share{}, concurrency: opts.Concurrency, prefetch: opts.prefetch(), batchSize: opts.BatchSize}
	for _, h := range registry.Handlers() {
		s := &share{handler: h}
		b.shares = append(b.shares, s)
		b.byHandler[h] = s
	}
	return b
}

// maxStuck bounds the slots replaced for a handler whose calls do not return:
// at that many its claiming stops (contract 5.4).
func (b *board) maxStuck() int { return b.concurrency }

func (b *board) claimable(s *share) bool { return s.more && !s.paused && s.stuck < b.maxStuck() }

func (b *board) totals() (running, queued int) {
	for _, s := range b.shares {
		running += s.running
		queued += len(s.queue)
	}
	return running, queued
}

// fair is the number of slots every handler with work can count on: with c
// slots and h such handlers, max(1, c/h) (contract 5.2).
func (b *board) fair() int {
	h := 0
	for _, s := range b.shares {
		if s.busy() > 0 || b.claimable(s) {
			h++
		}
	}
	return max(1, b.concurrency/max(h, 1))
}

// limits says how much to claim for each share now: together no more than
// min(BatchSize, free slots + prefetch), spread evenly over the handlers that
// may have work, and beyond that whatever lifts a handler to its fair share,
// so that no other handler's backlog or hanging calls keep it from it. nil
// means that there is nothing to claim.
func (b *board) limits() map[*share]int {
	running, queued := b.totals()
	free := max(0, min(b.batchSize, b.concurrency+b.prefetch-running-queued))
	fair := b.fair()
	var wanting []*share
	starving := false
	for i := range b.shares {
		s := b.shares[(b.turn+i)%len(b.shares)]
		if b.claimable(s) {
			wanting = append(wanting, s)
			starving = starving || s.busy() < fair
		}
	}
	if len(wanting) == 0 {
		return nil
	}
	// A claim for a slot or two costs as much as one for many: wait for half
	// the prefetch to drain, unless a handler runs short.
	if !starving && free < min(b.batchSize, b.prefetch/2+1) {
		return nil
	}
	b.turn++
	limits := make(map[*share]int, len(wanting))
	total := 0
	for i, s := range wanting {
		part := free / len(wanting)
		if i < free%len(wanting) {
			part++
		}
		limits[s] = part
		total += part
	}
	for _, s := range wanting {
		if short := fair - s.busy() - limits[s]; short > 0 && total < b.batchSize {
			short = min(short, b.batchSize-total)
			limits[s] += short
			total += short
		}
	}
	for s, n := range limits {
		if n == 0 {
			delete(limits, s)
		}
	}
	if len(limits) == 0 {
		return nil
	}
	return limits
}

// next takes the attempt to start now, if a slot is free: handlers take
// turns, and one below its fair share may start although all slots are taken.
func (b *board) next() *attempt {
	running, _ := b.totals()
	fair := b.fair()
	var best *share
	for i := range b.shares {
		s := b.shares[(b.turn+i)%len(b.shares)]
		if len(s.queue) == 0 || (running >= b.concurrency && s.running >= fair) {
			continue
		}
		if best == nil || s.running < best.running {
			best = s
		}
	}
	if best == nil {
		return nil
	}
	a := best.queue[0]
	best.queue = best.queue[1:]
	best.running++
	return a
}

// wake marks handlers as possibly having due statuses; no keys means all.
func (b *board) wake(keys map[string]bool, all bool) {
	for _, s := range b.shares {
		if all || keys[s.handler.Key()] {
			s.more = true
		}
	}
}

// forgetDue makes the database be asked again what comes due when.
func (b *board) forgetDue() {
	for _, s := range b.shares {
		s.asked = false
	}
}
