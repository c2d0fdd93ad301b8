package kafka

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/models"
)

type place struct {
	topic     string
	partition int
}

// ledger is an acceptor that remembers what it accepted, and checks these promises: every record is
// accepted at least once, first acceptances are in order and without gap, and offsets are never
// committed past what is accepted and never move back.
type ledger struct {
	noRequests
	// before runs first. If it fails, nothing is stored. after runs when everything is stored. If
	// it fails, the response is lost. halt decides at which records to halt. All may be nil.
	before, after func(ctx context.Context, received []envelope.Received) error
	halt          func(envelope.Record) bool
	// onGap decides about gaps. If it is nil, gaps halt.
	onGap func(envelope.Gap) (envelope.Disposition, error)
	// sparse allows missing offsets (compaction, transactions).
	sparse bool

	mu         sync.Mutex
	next       map[place]int64 // all records below are accepted
	times      map[place]map[int64]int
	records    map[place][]envelope.Record
	calls      int
	largest    int
	failures   []string
	committed  map[place]int64
	restarts   map[string]bool
	lastChange chan struct{}
}

func newLedger() *ledger {
	return &ledger{
		next: map[place]int64{}, times: map[place]map[int64]int{}, records: map[place][]envelope.Record{},
		committed:  map[place]int64{},
		lastChange: make(chan struct{}),
	}
}

func (l *ledger) AcceptRecords(ctx context.Context, _ string, received []envelope.Received) ([]envelope.Result, error) {
	l.mu.Lock()
	l.calls++
	l.largest = max(l.largest, len(received))
	l.mu.Unlock()
	if l.before != nil {
		if err := l.before(ctx, received); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	results := make([]envelope.Result, len(received))
	halted := map[place]bool{}
	l.mu.Lock()
	for i, r := range received {
		at := place{r.Record.Topic, r.Record.Partition}
		if halted[at] || l.halt != nil && l.halt(r.Record) {
			halted[at] = true
			results[i] = envelope.Result{Disposition: envelope.Halt, Err: fmt.Errorf("bad record at %d", r.Record.Offset)}
			continue
		}
		results[i].Accepted = len(r.Messages)
		l.store(at, r.Record)
	}
	close(l.lastChange)
	l.lastChange = make(chan struct{})
	l.mu.Unlock()
	if l.after != nil {
		if err := l.after(ctx, received); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// AcceptGap lets the consumer continue if the ledger has onGap and that allows it.
func (l *ledger) AcceptGap(_ context.Context, _ string, gap envelope.Gap) (envelope.Disposition, error) {
	if l.onGap == nil {
		return envelope.Halt, nil
	}
	return l.onGap(gap)
}

func (l *ledger) store(at place, r envelope.Record) {
	if l.times[at] == nil {
		l.times[at] = map[int64]int{}
	}
	l.times[at][r.Offset]++
	if l.times[at][r.Offset] > 1 {
		return
	}
	if next := l.next[at]; r.Offset < next || r.Offset > next && !l.sparse {
		l.failures = append(l.failures, fmt.Sprintf("%v: offset %d was accepted first when %d was expected", at, r.Offset,
			next))
	}
	l.next[at] = r.Offset + 1
	l.records[at] = append(l.records[at], r)
}

// sample compares committed offsets with what is accepted.
func (l *ledger) sample(topic string, committed map[int]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for partition, offset := range committed {
		at := place{topic, partition}
		if !l.sparse && !l.restarts[topic] && offset > l.next[at] {
			l.failures = append(l.failures, fmt.Sprintf("%v: committed %d, accepted only up to %d", at, offset, l.next[at]))
		}
		if offset < l.committed[at] && !l.restarts[topic] {
			l.failures = append(l.failures, fmt.Sprintf("%v: committed moved back from %d to %d", at, l.committed[at], offset))
		}
		l.committed[at] = offset
	}
}

// again lets the topic's committed offsets move back, because the topic was created again. Use it if
// another acceptor consumes the topic.
func (l *ledger) again(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restarts = map[string]bool{topic: true}
}

// accepted returns how many different records of a topic were accepted.
func (l *ledger) accepted(topic string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for at, times := range l.times {
		if at.topic == topic {
			n += len(times)
		}
	}
	return n
}

// deliveries returns how often records of a topic were accepted.
func (l *ledger) deliveries(topic string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for at, times := range l.times {
		if at.topic == topic {
			for _, count := range times {
				n += count
			}
		}
	}
	return n
}

func (l *ledger) stats() (calls, largest int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls, l.largest
}

func (l *ledger) of(topic string, partition int) []envelope.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]envelope.Record(nil), l.records[place{topic, partition}]...)
}

// check fails the test for every broken promise.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, failure := range l.failures {
		t.Error(failure)
	}
}

// watchCommits samples the committed offsets until the test ends.
func (l *ledger) watchCommits(t *testing.T, topic string, committed func() (map[int]int64, error)) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(15 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				if offsets, err := committed(); err == nil { // unreachable brokers are skipped
					l.sample(topic, offsets)
				}
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		l.check(t)
	})
}

// noRequests completes an acceptor in tests without operators.
type noRequests struct{}

func (noRequests) PartitionRequests(context.Context, string) ([]models.PartitionRequest, error) {
	return nil, nil
}

func (noRequests) CarryOut(
	context.Context, models.PartitionRequest, *envelope.Received, *envelope.Gap,
) (envelope.Disposition, error) {
	return envelope.Halt, nil
}

// haltAtGaps completes an acceptor in tests without gaps and operators.
type haltAtGaps struct{ noRequests }

func (haltAtGaps) AcceptGap(context.Context, string, envelope.Gap) (envelope.Disposition, error) {
	return envelope.Halt, nil
}
