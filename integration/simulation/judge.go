package simulation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/integration/simulation/broker"
	"github.com/gorm-inbox/inbox/models"
)

// ledger is what happened outside of the database. It is safe for concurrent use.
type ledger struct {
	mu        sync.Mutex
	runs      map[[2]string][]*run // by handler and message
	all       int
	logs      map[broker.Partition][]Message
	accepted  []string                   // by the application, and acknowledged
	durable   map[broker.Partition]int64 // what precedes is known to be durable
	discarded map[[2]string]bool         // by handler and message
	expired   map[broker.Partition]int64 // what precedes is deleted from the log
	lost      map[string]bool            // messages that a gap has taken, or at least one of their records
	former    []Message                  // of logs that were deleted
	notBefore map[string]time.Time       // by message
	arrived   []shipped                  // of the outgoing channel, each when it arrived first
}

// run is a call of a handler.
type run struct {
	id      int
	process *process
	worker  string
	does    outcome
	ledger  *ledger
	err     error
	ended   bool
	at      time.Time // when it ended
}

// begin notes a call of a handler, and judges whether the handler may be called.
func (w *world) begin(s *process, handler, message string) *run {
	w.judgeLane(handler, message)
	var successes []*run
	defer func() { w.judgeAgain(handler, message, successes) }() // without the lock
	l := &w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	key := [2]string{handler, message}
	before := l.runs[key]
	l.all++
	r := &run{id: l.all, process: s, worker: s.inbox.Health().Processor.WorkerID, does: succeed, ledger: l}
	if !w.calm.Load() {
		r.does = w.plan.outcome(handler, message, len(before)+1)
	}
	l.runs[key] = append(before, r)
	// Of the others, the owner of a partition may change while a handler runs. Where the database's clock jumps, a living
	// worker may be silent for too long.
	alone := (slices.Contains(handlers[orders], handler) || handler == "score" || handler == publishing) &&
		!w.plan.has(Jump)
	for _, other := range before {
		if alone && !other.ended && !other.process.dead.Load() && other.does != ignore {
			w.breaks("%s runs for %s in %s and in %s at once", handler, message, other.process.name, s.name)
		}
		if alone && handler == "mail" && other.ended && other.err == nil && other.does != ignore && other.runs() {
			successes = append(successes, other)
		}
		if handler == "greet" && other.process == s && other.ended && other.err == nil {
			w.breaks("%s runs for %s in %s, which has a marker in memory", handler, message, s.name)
		}
	}
	if running := l.running("mail"); handler == "mail" && running > mails && !w.plan.has(Jump) {
		w.breaks("%d calls of mail run at once in all processes", running)
	}
	// A backfill does not know a message's time (contract 4.8), and may add rows of this handler.
	if early := time.Until(l.notBefore[message]); early > 0 && handler != added && !w.plan.has(Jump) {
		w.breaks("%s runs for %s %s before its time", handler, message, early)
	}
	if l.discarded[key] {
		w.breaks("%s runs for %s, which is discarded", handler, message)
	}
	if marker := "inbox:{" + message + ":" + payments + "}:" + handler; w.cache.remembers(marker, marker+"-2") {
		w.breaks("%s runs for %s, which has a marker in the cache", handler, message)
	}
	return r
}

// running counts the calls of a handler that run in living processes and obey their contexts. The lock is held.
func (l *ledger) running(handler string) (n int) {
	for key, runs := range l.runs {
		for _, r := range runs {
			if key[0] == handler && !r.ended && r.does != ignore && !r.process.dead.Load() {
				n++
			}
		}
	}
	return n
}

// judgeLane checks that nothing that precedes a message in its lane is open.
func (w *world) judgeLane(handler, message string) {
	if handler != "ship" {
		return
	}
	for _, lane := range lanes {
		for i, ids := 0, w.ledger.ids(orders, lane); slices.Contains(ids, message) && ids[i] != message; i++ {
			if w.rows(`FROM inbox_handler_statuses WHERE handler_key IN (?, ?) AND message_id = ? AND completed_at IS NULL`,
				handler, handler+"-2", ids[i]) > 0 {
				w.breaks("%s runs for %s before %s, which precedes it in its lane", handler, message, ids[i])
			}
		}
	}
}

// judgeAgain checks that a plain handler which runs again has not succeeded before in a worker that still works. Only a
// worker that others give up may lose what has been done.
func (w *world) judgeAgain(handler, message string, successes []*run) {
	for _, r := range successes {
		if w.rows(`FROM inbox_workers WHERE id = ? AND released_at IS NULL AND heartbeat_at > clock(?)`, r.worker,
			-(recovery/2).Microseconds()) > 0 {
			w.breaks("%s runs for %s again, and has succeeded in %s, which still works", handler, message, r.process.name)
		}
	}
}

// runs reports whether the run's process runs, under the worker ID with which the run began. A drain has none.
func (r *run) runs() bool {
	p := r.process
	return r.worker != "" && p.now.Load() == p && !p.dead.Load() && p.inbox.Health().Processor.WorkerID == r.worker
}

func (r *run) end(err error) error {
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	r.err, r.ended, r.at = err, true, time.Now()
	return err
}

// succeeded counts the calls that returned nil.
func (l *ledger) succeeded(handler, message string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.runs[[2]string{handler, message}] {
		if r.ended && r.err == nil {
			n++
		}
	}
	return n
}

// failed counts the calls that returned an error, or have not returned, and were not interrupted. called counts all.
func (l *ledger) failed(handler, message string) (failed, called int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	runs := l.runs[[2]string{handler, message}]
	for _, r := range runs {
		if !r.ended || r.err != nil && !errors.Is(r.err, context.Canceled) {
			failed++
		}
	}
	return failed, len(runs)
}

// mayLack reports whether a handler need not have run for a message, which is lost or discarded.
func (l *ledger) mayLack(handler, message string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost[message] || l.discarded[[2]string{handler, message}]
}

func (l *ledger) isDiscarded(handler, message string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.discarded[[2]string{handler, message}]
}

func (l *ledger) produced(m Message, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := broker.Partition{Topic: m.Topic, ID: m.Partition}
	if int(offset) != len(l.logs[at]) {
		panic(fmt.Sprintf("offset %d after %d records", offset, len(l.logs[at])))
	}
	l.logs[at] = append(l.logs[at], m)
}

// waits notes that a message must not run before a time.
func (l *ledger) waits(id string, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notBefore[id] = until
}

func (l *ledger) acknowledged(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted = append(l.accepted, id)
}

// expire notes that the records before an offset are deleted.
func (l *ledger) expire(at broker.Partition, before int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expired[at] = max(l.expired[at], before)
}

// recreate begins the logs of a topic again.
func (l *ledger) recreate(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range partitions {
		at := broker.Partition{Topic: topic, ID: id}
		l.former = append(l.former, l.logs[at]...)
		delete(l.logs, at)
		delete(l.durable, at)
		delete(l.expired, at)
	}
}

// log returns the records of a partition before an offset that are not known to be durable, and the first one's offset.
func (l *ledger) log(at broker.Partition, to int64) (unknown []Message, first int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to = min(to, int64(len(l.logs[at]))) // the topic was perhaps created again
	first = min(l.durable[at], to)
	return slices.Clone(l.logs[at][first:to]), first
}

// ids returns the IDs of a topic's messages, or of those of a lane in their order.
func (l *ledger) ids(topic, lane string) (ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, log := range append([][]Message{l.former}, slices.Collect(maps.Values(l.logs))...) {
		for _, m := range log {
			if m.Topic == topic && (lane == "" || m.Lane == lane) {
				ids = append(ids, m.ID)
			}
		}
	}
	if topic == orders && lane == "" {
		ids = append(ids, l.accepted...)
	}
	if lane == "" {
		slices.Sort(ids)
		ids = slices.Compact(ids)
	}
	return ids
}

// judgeCommit checks that the committed offset is not ahead of what is durable.
func (w *world) judgeCommit(c broker.Commit) {
	at := broker.Partition{Topic: c.Topic, ID: c.Partition}
	if c.Offset > w.broker.End(at) {
		w.breaks("%s committed offset %d of %s/%d, whose log is shorter", c.Member, c.Offset, c.Topic, c.Partition)
		return
	}
	unknown, first := w.ledger.log(at, c.Offset)
	w.ledger.mu.Lock()
	expired := w.ledger.expired[at]
	w.ledger.mu.Unlock()
	for i, m := range unknown {
		offset := first + int64(i)
		switch {
		case w.isDurable(m):
		case offset < expired && w.rows(`FROM inbox_gaps WHERE topic = ? AND partition = ? AND from_offset <= ? AND to_offset > ?`,
			c.Topic, c.Partition, offset, offset) > 0:
			w.count("records", "lost in a gap")
			w.ledger.mu.Lock()
			w.ledger.lost[m.ID] = true
			w.ledger.mu.Unlock()
		default:
			w.breaks("%s committed offset %d of %s/%d, but %s before it is not durable",
				c.Member, c.Offset, c.Topic, c.Partition, m.ID)
		}
	}
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	w.ledger.durable[at] = max(w.ledger.durable[at], c.Offset)
}

// isDurable reports whether a record's message is stored or handled, or is kept as rejected.
func (w *world) isDurable(m Message) bool {
	// An Inbox channel's may have been deleted since, after all of its handlers.
	handled := !slices.ContainsFunc(handlers[m.Topic], func(handler string) bool {
		if handler == added || w.ledger.isDiscarded(handler, m.ID) {
			return false
		}
		if slices.Contains(transactional, handler) {
			return w.rows(`FROM effects WHERE message = ? AND handler = ?`, m.ID, handler) == 0
		}
		return w.ledger.succeeded(handler, m.ID) == 0
	})
	return handled || w.rows(`FROM inbox_messages WHERE id = ? AND namespace = ?`, m.ID, m.Topic) > 0 ||
		w.rows(`FROM inbox_rejected_messages WHERE topic = ? AND value = ?`, m.Topic, []byte(m.ID)) > 0
}

// rows counts rows.
func (w *world) rows(from string, args ...any) (n int) {
	w.query(&n, "SELECT count(*) "+from, args...)
	return n
}

// query reads rows into a struct, a slice or a number.
func (w *world) query(into any, text string, args ...any) {
	if err := w.db.Raw(text, args...).Scan(into).Error; err != nil {
		w.breaks("the judge: %v", err)
	}
}

// open is a status that is not completed.
type open struct {
	MessageID, HandlerKey                        string
	IsPoisoned, IsWaiting                        bool
	ErrorCount, AbandonedCount                   int
	ProcessingStartedAt, NextAttemptAt, WorkerID *string
	LastError                                    *string
}

func (w *world) open() (all []open) {
	w.query(&all, `SELECT * FROM inbox_handler_statuses WHERE completed_at IS NULL`)
	return all
}

// judgeStates checks what the rows say of the attempts that the handlers have seen.
func (w *world) judgeStates() {
	disturbed := w.plan.has(abrupt...)
	var all []open
	w.query(&all, `SELECT * FROM inbox_handler_statuses`)
	for _, s := range all {
		handler := strings.TrimSuffix(s.HandlerKey, "-2")
		failed, called := w.ledger.failed(handler, s.MessageID)
		if disturbed && called > 3 {
			failed = called // the fourth transaction in a row that is lost is charged
		}
		if s.ErrorCount > failed {
			w.breaks("%s of %s is charged %d failures, but failed %d times: %s", s.HandlerKey, s.MessageID, s.ErrorCount, failed,
				describe(s))
		}
		if s.IsPoisoned && s.ErrorCount+s.AbandonedCount == 0 {
			w.breaks("%s of %s is poisoned without a charge: %v", s.HandlerKey, s.MessageID, s.LastError)
		}
		if !disturbed && s.AbandonedCount > 0 && !w.ignored(handler, s.MessageID) {
			w.breaks("%s of %s is charged as abandoned, but no process was killed", s.HandlerKey, s.MessageID)
		}
	}
}

// ignored reports whether a call has ignored its context: it may outlast its process's stop.
func (w *world) ignored(handler, message string) bool {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	return slices.ContainsFunc(w.ledger.runs[[2]string{handler, message}], func(r *run) bool { return r.does == ignore })
}

// watchClaims has the database note which statuses are completed or charged by another client than the one whose worker
// has claimed them, or discarded while one has. Claims of drains have no worker.
func (w *world) watchClaims() (err error) {
	usurps := func(name, when string) string {
		return `CREATE TRIGGER ` + name + ` AFTER UPDATE ON inbox_handler_statuses WHEN ` + when + `
			AND (OLD.worker_id IS NOT NULL OR OLD.processing_started_at IS NULL)
			AND (SELECT client FROM owners WHERE worker = OLD.worker_id) IS NOT client()
			BEGIN INSERT OR REPLACE INTO usurped VALUES (OLD.rowid, OLD.message_id || ' of ' || OLD.handler_key, client()); END`
	}
	for _, text := range []string{
		`CREATE TABLE owners (id integer NOT NULL PRIMARY KEY, worker text NOT NULL, client text NOT NULL)`,
		`CREATE TABLE usurped (id integer NOT NULL PRIMARY KEY, status text NOT NULL, client text NOT NULL)`,
		`CREATE TRIGGER owned AFTER INSERT ON inbox_workers
			BEGIN INSERT OR REPLACE INTO owners VALUES (NEW.rowid, NEW.id, client()); END`,
		usurps("completed", `OLD.completed_at IS NULL AND NEW.completed_at IS NOT NULL AND NEW.outcome NOT IN ('discarded', 'superseded')`),
		usurps("charged", `NEW.error_count > OLD.error_count`),
		`CREATE TRIGGER discarded AFTER UPDATE ON inbox_handler_statuses WHEN NEW.outcome = 'discarded' AND OLD.outcome = ''
			AND OLD.processing_started_at IS NOT NULL AND NOT OLD.is_poisoned
			BEGIN INSERT OR REPLACE INTO usurped VALUES (OLD.rowid, OLD.message_id || ' of ' || OLD.handler_key, client()); END`,
	} {
		err = errors.Join(err, w.db.Exec(text).Error)
	}
	return err
}

// judgeStopped checks that a process which has stopped has no claims. A call that ignores its context keeps its own.
func (w *world) judgeStopped(s *process) {
	var claimed []open
	w.query(&claimed, `SELECT s.* FROM inbox_handler_statuses s JOIN owners o ON o.worker = s.worker_id
		WHERE o.client = ? AND s.completed_at IS NULL`, s.name)
	for _, c := range claimed {
		if !w.ignored(strings.TrimSuffix(c.HandlerKey, "-2"), c.MessageID) {
			w.breaks("%s has stopped, and still claims %s of %s", s.name, c.HandlerKey, c.MessageID)
		}
	}
}

// judgeRows checks what must be true of the rows at any time: a handler has one for a message, under whichever key, and
// only the worker that has claimed a status completes or charges it.
func (w *world) judgeRows() {
	var twice []struct{ MessageID, HandlerKeys string }
	w.query(&twice, `SELECT message_id, group_concat(handler_key) AS handler_keys FROM inbox_handler_statuses
		GROUP BY message_number, replace(handler_key, '-2', '') HAVING count(*) > 1`)
	for _, s := range twice {
		w.breaks("%s has rows of one handler under %s", s.MessageID, s.HandlerKeys)
	}
	var usurped []struct{ Status, Client string }
	w.query(&usurped, `SELECT * FROM usurped`)
	for _, s := range usurped {
		w.breaks("%s was completed, charged or discarded by %s, which did not have it", s.Status, s.Client)
	}
}

// judgeClaims checks that nothing is claimed by a worker that is long dead, or by a drain, or by one that has run it.
func (w *world) judgeClaims() {
	w.count("rests", "judged")
	var claimed []struct{ MessageID, HandlerKey, Claimant string }
	w.query(&claimed, `SELECT s.message_id, s.handler_key, COALESCE('worker ' || s.worker_id, 'a drain') AS claimant
		FROM inbox_handler_statuses s LEFT JOIN inbox_workers w ON w.id = s.worker_id
		WHERE s.completed_at IS NULL AND NOT s.is_poisoned AND CASE WHEN s.worker_id IS NULL
			THEN s.processing_started_at < clock(?) ELSE COALESCE(w.heartbeat_at, '') < clock(?) END`,
		-stuck.Microseconds(), -(recovery / 2).Microseconds())
	for _, s := range claimed {
		w.breaks("%s of %s is still claimed by %s", s.HandlerKey, s.MessageID, s.Claimant)
	}
	for _, s := range w.open() {
		if s.WorkerID != nil && w.ledger.hasRun(strings.TrimSuffix(s.HandlerKey, "-2"), s.MessageID, *s.WorkerID) {
			w.breaks("%s of %s is still claimed by worker %s, in which it has succeeded", s.HandlerKey, s.MessageID, *s.WorkerID)
		}
	}
}

// hasRun reports whether the last call of a handler has succeeded in a worker some time ago.
func (l *ledger) hasRun(handler, message, worker string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	runs := l.runs[[2]string{handler, message}]
	last := len(runs) - 1
	return last >= 0 && runs[last].worker == worker && runs[last].ended && runs[last].err == nil &&
		time.Since(runs[last].at) > recovery
}

// left returns what has not ended.
func (w *world) left() (left []string) {
	for _, s := range w.open() {
		left = append(left, fmt.Sprintf("%s of %s is left: %+v", s.HandlerKey, s.MessageID, describe(s)))
	}
	var rejected []models.RejectedMessage
	w.query(&rejected, `SELECT * FROM inbox_rejected_messages`)
	for _, r := range rejected {
		left = append(left, fmt.Sprintf("%s of %s is left as rejected: %s", r.Value, r.Topic, r.Reason))
	}
	for _, topic := range topics {
		left = append(left, w.unread(topic)...)
	}
	for _, p := range w.places {
		s := p.now.Load()
		if s == nil {
			left = append(left, "no process runs at "+p.name)
			continue
		}
		if s.version%2 == 0 && w.renamed.Load() {
			left = append(left, s.name+" is left in the older version")
		}
		for _, reason := range s.inbox.Health().Reasons {
			if reason.Code != "clock_skew" { // it is wrong for the whole run
				left = append(left, fmt.Sprintf("the health of %s is left: %s", s.name, reason.Detail))
			}
		}
	}
	return left
}

// unread returns the partitions of a topic of which not all is committed.
func (w *world) unread(topic string) (left []string) {
	committed := w.broker.Committed(groupOf(topic))
	for id := range partitions {
		at := broker.Partition{Topic: topic, ID: id}
		if end := w.broker.End(at); end > 0 && committed[at] != end {
			left = append(left, fmt.Sprintf("%s/%d is left at %d of %d", topic, id, committed[at], end))
		}
	}
	return left
}

func describe(s open) string {
	var text []string
	for name, value := range map[string]*string{"claimed": s.ProcessingStartedAt, "worker": s.WorkerID,
		"next": s.NextAttemptAt, "error": s.LastError} {
		if value != nil {
			text = append(text, name+" "+*value)
		}
	}
	slices.Sort(text)
	return fmt.Sprintf("poisoned %t, waiting %t, failed %d, abandoned %d, %s", s.IsPoisoned, s.IsWaiting, s.ErrorCount,
		s.AbandonedCount, strings.Join(text, ", "))
}

// judge checks the effects once everything has ended.
func (w *world) judge() {
	type effect struct {
		Run              int
		Handler, Message string
	}
	var effects []effect
	w.query(&effects, `SELECT * FROM effects ORDER BY run`)
	times := map[[2]string]int{}
	for _, e := range effects {
		times[[2]string{e.Handler, e.Message}]++
	}
	// If no process died and no call was lost, nothing justifies that these succeed twice.
	once := map[string]bool{"mail": !w.plan.has(abrupt...) && w.deaths.Load() == 0}
	once["score"] = once["mail"] && !w.plan.has(Amnesia)
	kept := map[string]bool{} // messages of which the added handler has had each, in the end
	if w.plan.keeps() && w.renamed.Load() {
		var stored []string
		w.query(&stored, `SELECT id FROM inbox_messages WHERE namespace = ?`, orders)
		for _, id := range stored {
			kept[id] = true
		}
	}
	for topic, handlers := range handlers {
		for _, id := range w.ledger.ids(topic, "") {
			for _, handler := range handlers {
				n, least, most := w.ledger.succeeded(handler, id), 1, 1
				discarded := w.ledger.isDiscarded(handler, id)
				if slices.Contains(transactional, handler) {
					n = times[[2]string{handler, id}]
				} else if !once[handler] {
					most = max(n, 1)
				}
				switch {
				case discarded && slices.Contains(transactional, handler):
					least, most = 0, 0
				case w.ledger.mayLack(handler, id), handler == added && !kept[id]:
					least = 0
				}
				if n < least || n > most {
					w.breaks("%s has succeeded %d times for %s, not %d to %d times", handler, n, id, least, most)
				}
			}
		}
	}
	for _, lane := range lanes {
		var shipped []string
		for _, e := range effects {
			if e.Handler == "ship" && slices.Contains(w.ledger.ids(orders, lane), e.Message) {
				shipped = append(shipped, e.Message)
			}
		}
		want := slices.DeleteFunc(w.ledger.ids(orders, lane), func(id string) bool {
			return !slices.Contains(shipped, id) && w.ledger.mayLack("ship", id)
		})
		if !slices.Equal(shipped, want) {
			w.breaks("lane %s ran %v, not %v", lane, shipped, want)
		}
	}
	w.judgeArrivals()
	w.judgeRows()
	w.judgeWorkers()
}

// judgeWorkers checks that no more workers live than processes run.
func (w *world) judgeWorkers() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	workers, err := w.ops.Workers(ctx)
	if err != nil {
		w.breaks("the judge: %v", err)
	}
	living := 0
	for _, worker := range workers {
		if worker.Alive {
			living++
		}
	}
	if living != w.plan.Processes {
		w.breaks("%d workers live in %d processes", living, w.plan.Processes)
	}
}
