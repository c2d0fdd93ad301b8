package scheduler

// Rules are what is settled for one handler.
type Rules struct {
	Key string
	// Concurrency is how many slots it may hold; 0 is as many as there are.
	Concurrency int
	// GroupSize is how many messages may share a slot, at least 1.
	GroupSize int
	// Counted says that what is due of it in the database is known from what this process
	// accepted since the last claim.
	Counted bool
	// Circuit tells how its circuit breaker stands now; nil is always Closed.
	Circuit func() Circuit
}

// Circuit is how a circuit breaker stands.
type Circuit int

const (
	// Closed lets everything run.
	Closed Circuit = iota
	// Open lets nothing run.
	Open
	// HalfOpen lets one message run, as a probe.
	HalfOpen
	// Tried is HalfOpen while the probe, or what began before the circuit opened, runs.
	Tried
)

// Probing reports whether at most one message at a time may run.
func (c Circuit) Probing() bool { return c == HalfOpen || c == Tried }

// Shut reports whether nothing may start now.
func (c Circuit) Shut() bool { return c == Open || c == Tried }

// Handler is one handler's share of the work in this process, counted in slots.
type Handler[T Task] struct {
	rules   Rules
	limits  *Limits
	queue   []T // claimed, not started
	alone   int // of the queue: those that may share a slot with no other
	running int // groups
	stuck   int // groups that ignore their cancelled context; they hold no slot
	// more is true while the database may have due messages for the handler; few, if
	// positive, at most so many, all of them accepted by this process.
	more bool
	few  int
	// claiming is how many messages the claim under way asks for; blind, that it does so
	// without knowing what there is.
	claiming int
	blind    bool
	reserved int  // messages that accepts under way may hand off (contract 5.17)
	lapsed   int  // likewise, of accepts that take long: these keep no claim waiting
	dueAsked bool // when its next message comes due has been asked since the last look
	paused   bool
	broken   bool // the circuit was open when it was last looked at
}

// Key is the handler's.
func (h *Handler[T]) Key() string { return h.rules.Key }

// Enqueue lets tasks wait for a slot, at the front or the back. Those that it refuses, because
// no call of the handler may start, must be given back.
func (h *Handler[T]) Enqueue(tasks []T, front bool) (refused []T) {
	switch {
	case len(tasks) == 0: // as after every group that has come to its end
		return nil
	case !h.canRun():
		return tasks
	case front:
		h.queue = append(tasks, h.queue...)
	default:
		h.queue = append(h.queue, tasks...)
	}
	for _, t := range tasks {
		if h.rules.GroupSize > 1 && !t.MayShare() {
			h.alone++
		}
	}
	return nil
}

func (h *Handler[T]) take(size int) (group []T) {
	if h.rules.GroupSize > 1 && !h.queue[0].MayShare() {
		h.alone--
	}
	group, h.queue = Group(h.queue, size)
	return group
}

// Group takes the first task off a queue, with up to size-1 others that may share with it,
// and returns what is left, in order.
func Group[T Task](queue []T, size int) (group, rest []T) {
	if size <= 1 || !queue[0].MayShare() {
		return queue[:1:1], queue[1:]
	}
	group = append(group, queue[0])
	rest = make([]T, 0, len(queue))
	for _, t := range queue[1:] {
		if len(group) < size && t.MayShare() {
			group = append(group, t)
		} else {
			rest = append(rest, t)
		}
	}
	return group, rest
}

// Drop empties the queue and returns what was in it.
func (h *Handler[T]) Drop() []T {
	dropped := h.queue
	h.queue, h.alone = nil, 0
	return dropped
}

// Ended frees the slot of a group.
func (h *Handler[T]) Ended() { h.running-- }

// Overdue replaces the slot of a group whose call ignores its cancelled context (contract
// 5.4). If too many do, no call starts any more, and what is queued is dropped.
func (h *Handler[T]) Overdue() (dropped []T, ends bool) {
	h.running--
	h.stuck++
	if h.canRun() {
		return nil, false
	}
	return h.Drop(), true
}

// Returned notes that an overdue call has returned.
func (h *Handler[T]) Returned() { h.stuck-- }

// Stuck are the calls that are overdue.
func (h *Handler[T]) Stuck() int { return h.stuck }

// Pause obeys whether operators have paused the handler: then what is queued is dropped.
func (h *Handler[T]) Pause(paused bool) (dropped []T) {
	if h.paused && !paused {
		h.wake()
	}
	h.paused = paused
	if paused {
		return h.Drop()
	}
	return nil
}

// Break obeys the circuit breaker: while it is open, what is queued is dropped, because another
// worker's may be closed. When it lets a probe through there may be work again. opened
// is true if it was not open the last time.
func (h *Handler[T]) Break() (dropped []T, opened bool) {
	before := h.broken
	h.broken = h.circuit() == Open
	switch {
	case h.broken:
		return h.Drop(), !before
	case before:
		h.wake()
	}
	return nil, false
}

// Broken is what Break found last.
func (h *Handler[T]) Broken() bool { return h.broken }

func (h *Handler[T]) circuit() Circuit {
	if h.rules.Circuit == nil {
		return Closed
	}
	return h.rules.Circuit()
}

// slots is how many slots so many new messages take.
func (h *Handler[T]) slots(messages int) int {
	return (messages + h.rules.GroupSize - 1) / h.rules.GroupSize
}

// queued is how many slots the queue is going to take, and what accepts under way may add
// to it.
func (h *Handler[T]) queued() int { return h.alone + h.slots(len(h.queue)-h.alone+h.reserved) }

func (h *Handler[T]) busy() int { return h.running + h.queued() }

// limit is how many slots the handler may hold at once: its own limit, and one while its
// circuit breaker tries a probe. Calls that do not return hold none of the inbox's, but go
// on running, and count here.
func (h *Handler[T]) limit() int {
	limit := h.limits.Concurrency
	if own := h.rules.Concurrency; own > 0 {
		limit = own - h.stuck
	}
	if h.circuit().Probing() {
		limit = min(limit, 1)
	}
	return max(limit, 0)
}

// canRun is false while so many calls of the handler do not return that no other may start:
// what is queued is for another worker then.
func (h *Handler[T]) canRun() bool { return h.stuck < h.limits.maxStuck() && h.limit() > 0 }

func (h *Handler[T]) claimable() bool {
	return h.more && !h.paused && h.canRun() && !h.circuit().Shut() && h.room() > 0
}

// room is how many more slots' worth may be claimed for a handler with a limit of its own:
// what runs and as much again, that no worker hoards what others could run. A probe comes
// alone.
func (h *Handler[T]) room() int {
	limit := h.limit()
	switch {
	case h.circuit().Probing():
		return limit - h.busy()
	case h.rules.Concurrency > 0:
		return limit + min(limit, h.limits.Prefetch) - h.busy()
	default:
		return h.limits.Concurrency + h.limits.Prefetch + h.limits.BatchSize
	}
}

// wake: the database may have due messages, nobody knows how many.
func (h *Handler[T]) wake() { h.more, h.few = true, 0 }
