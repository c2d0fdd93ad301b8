package scheduler

import "time"

// Rules are the constants of one handler.
type Rules struct {
	Key string
	// Concurrency is how many slots the handler may hold; 0 means all.
	Concurrency int
	// GroupSize is how many messages may share a slot; at least 1.
	GroupSize int
	// Counted says that this process can count the due messages in the database: those that it has accepted since the
	// last claim.
	Counted bool
	// Circuit returns the present state of the circuit breaker; nil means always Closed.
	Circuit func() Circuit
}

// Circuit is the state of a circuit breaker.
type Circuit int

const (
	// Closed lets everything run.
	Closed Circuit = iota
	// Open lets nothing run.
	Open
	// HalfOpen lets one message run, as a probe.
	HalfOpen
	// Tried is HalfOpen while the probe, or a call from before the circuit opened, still runs.
	Tried
)

// Probing reports whether at most one message at a time may run.
func (c Circuit) Probing() bool { return c == HalfOpen || c == Tried }

// Shut reports whether nothing may start now.
func (c Circuit) Shut() bool { return c == Open || c == Tried }

// Handler is the state of one handler: its slots, its queue and what is known of its due messages.
type Handler[T Task] struct {
	rules   Rules
	limits  *Limits
	queue   []T // claimed, not started
	alone   int // messages of the queue that must run alone in a slot
	running int // groups that hold a slot
	stuck   int // groups that ignore their cancellation; their slots were replaced

	// mayBeDue is true while the database may have due messages. If knownDue is positive, there are at most so many,
	// all accepted by this process.
	mayBeDue bool
	knownDue int
	// claiming is how many messages the running claim asks for. claimsUnknown says that it was started without knowing
	// how many are due.
	claiming      int
	claimsUnknown bool
	reserved      int // messages that running accepts may dispatch (contract 5.17)
	expired       int // messages of expired grants; claims do not wait for these
	nextDueKnown  bool
	paused        bool
	circuitOpen   bool // as of the last ApplyCircuit
	pace          pace
}

// Key returns the handler key.
func (h *Handler[T]) Key() string { return h.rules.Key }

// GroupSize returns how many messages may share a slot.
func (h *Handler[T]) GroupSize() int { return h.rules.GroupSize }

// SetGroupSize changes how many messages may share a slot: at least 2, for a handler that had at least 2.
func (h *Handler[T]) SetGroupSize(n int) { h.rules.GroupSize = n }

// Enqueue adds tasks to the queue, at its front or its end. It refuses them if no call of the handler may start; the
// caller must release the refused messages.
func (h *Handler[T]) Enqueue(tasks []T, front bool) (refused []T) {
	switch {
	case len(tasks) == 0:
		return nil
	case !h.canRun():
		return tasks
	case front:
		h.queue = append(tasks, h.queue...)
	default:
		h.queue = append(h.queue, tasks...)
	}
	for _, t := range tasks {
		if h.rules.GroupSize > 1 && !t.MayGroup() {
			h.alone++
		}
		h.pace.queued(t.Size())
		h.limits.bytes += t.Size()
	}
	return nil
}

func (h *Handler[T]) take(size int) (group []T) {
	if h.rules.GroupSize > 1 && !h.queue[0].MayGroup() {
		h.alone--
	}
	group, h.queue = Group(h.queue, size)
	return group
}

// Group splits a queue into the first task, with up to size-1 others that may share its slot, and the rest in order.
// The queue's array refers to none of the group afterwards.
func Group[T Task](queue []T, size int) (group, rest []T) {
	group = append(group, queue[0])
	if size <= 1 || !queue[0].MayGroup() {
		clear(queue[:1])
		return group, queue[1:]
	}
	rest = make([]T, 0, len(queue))
	for _, t := range queue[1:] {
		if len(group) < size && t.MayGroup() {
			group = append(group, t)
		} else {
			rest = append(rest, t)
		}
	}
	return group, rest
}

// Drop empties the queue and returns its tasks.
func (h *Handler[T]) Drop() []T {
	dropped := h.queue
	h.queue, h.alone = nil, 0
	for _, t := range dropped {
		h.limits.bytes -= t.Size()
	}
	return dropped
}

// Ended frees the slot of a group that has held it for as long as it took, and its bytes.
func (h *Handler[T]) Ended(took time.Duration, bytes int) {
	h.running--
	h.limits.bytes -= bytes
	h.pace.ended(took)
}

// Grew says that messages of so many bytes have joined a running group.
func (h *Handler[T]) Grew(bytes int) { h.limits.bytes += bytes }

// NotStarted frees the slot and the bytes of a group that does not run.
func (h *Handler[T]) NotStarted(bytes int) {
	h.running--
	h.limits.bytes -= bytes
}

// Overdue replaces the slot of a group whose call ignores its cancelled context (contract 5.4). At maxStuck such calls
// no further call starts: the queue is dropped, atLimit is true.
func (h *Handler[T]) Overdue() (dropped []T, atLimit bool) {
	h.running--
	h.stuck++
	if h.canRun() {
		return nil, false
	}
	return h.Drop(), true
}

// Returned says that an overdue call has returned.
func (h *Handler[T]) Returned(bytes int) {
	h.stuck--
	h.limits.bytes -= bytes
}

// Stuck returns the number of overdue calls.
func (h *Handler[T]) Stuck() int { return h.stuck }

// Idle reports whether nothing of the handler runs or waits for a slot.
func (h *Handler[T]) Idle() bool { return h.busy() == 0 }

// Pause sets whether operators have paused the handler. The queue of a paused handler is dropped, and messages that are
// queued later do not start.
func (h *Handler[T]) Pause(paused bool) (dropped []T) {
	if h.paused && !paused {
		h.expectWork()
	}
	h.paused = paused
	if paused {
		return h.Drop()
	}
	return nil
}

// ApplyCircuit checks the circuit breaker. While it is open the queue is dropped, because the breaker of another worker
// may be closed. opened is true if it was not open at the last check.
func (h *Handler[T]) ApplyCircuit() (dropped []T, opened bool) {
	before := h.circuitOpen
	h.circuitOpen = h.circuit() == Open
	switch {
	case h.circuitOpen:
		return h.Drop(), !before
	case before:
		h.expectWork()
	}
	return nil, false
}

// CircuitOpen returns the result of the last ApplyCircuit.
func (h *Handler[T]) CircuitOpen() bool { return h.circuitOpen }

func (h *Handler[T]) circuit() Circuit {
	if h.rules.Circuit == nil {
		return Closed
	}
	return h.rules.Circuit()
}

// slots returns how many slots so many messages take.
func (h *Handler[T]) slots(messages int) int {
	return (messages + h.rules.GroupSize - 1) / h.rules.GroupSize
}

// queued returns how many slots the queue needs, including messages that running accepts may add.
func (h *Handler[T]) queued() int { return h.alone + h.slots(len(h.queue)-h.alone+h.reserved) }

func (h *Handler[T]) busy() int { return h.running + h.queued() }

// limit returns how many slots the handler may hold at once: its own limit, and one while its circuit breaker is
// probing. Overdue calls hold none of the inbox's slots, but they still run, so they count against the handler's limit.
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

// canRun reports whether a call may start. It may not once too many calls are overdue; another worker must run the
// messages then.
func (h *Handler[T]) canRun() bool { return h.stuck < h.limits.maxStuck() && h.limit() > 0 }

func (h *Handler[T]) claimable() bool {
	return h.mayBeDue && !h.paused && h.canRun() && !h.circuit().Shut() && h.room() > 0
}

// room returns how many more slots' worth of messages may be claimed: messages that may run, and messages that may wait
// in the queue. A handler with its own limit gets at most twice that limit, so that no worker hoards messages that
// others could run. A probe comes alone.
func (h *Handler[T]) room() int {
	limit := h.limit()
	switch {
	case h.circuit().Probing():
		return limit - h.busy()
	case h.rules.Concurrency > 0:
		return h.share() + min(limit, h.ahead()) - h.busy()
	default:
		return h.share() + h.ahead() - h.busy()
	}
}

// expectWork says that the database may have an unknown number of due messages.
func (h *Handler[T]) expectWork() { h.mayBeDue, h.knownDue = true, 0 }
