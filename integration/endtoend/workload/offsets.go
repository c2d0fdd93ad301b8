package workload

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/gorm-inbox/inbox/integration/servers"
)

// Offsets watches a group's committed offsets. They must never move back, and never pass a record
// that is not stored (contract 7.1). It reads the records at each offset from the topic itself.
//
// A sample is compared with what was stored when it was taken. A message's received_at is earlier
// than its commit. So a message that was received after the sample, or is not stored, was passed.
type Offsets struct {
	admin  *servers.Admin
	tail   *kgo.Client
	group  string
	topic  string
	db     *sql.DB
	cancel context.CancelFunc
	ended  sync.WaitGroup
	asking sync.Mutex // held while a sample is taken

	mu        sync.Mutex
	arrived   chan struct{}    // closed and replaced when log grows
	log       map[int][]string // partition → message ID by offset, "" for a bad record
	committed map[int]int64    // the highest seen; -1 if there is none
	checked   map[int]int64    // all records below are known to be stored
	report    OffsetReport
}

// OffsetReport is the result of watching.
type OffsetReport struct {
	Samples      int
	Backwards    int // how often a partition's offset had moved back
	PastUnstored int // records that a committed offset had passed before they were stored
	Details      []string
}

// If a broker does not answer in time, the next request goes to another one if possible.
const (
	sampleInterval = 100 * time.Millisecond
	sampleTimeout  = time.Second
)

// WatchOffsets starts sampling. Call Stop to end it. If a broker or the database is unreachable,
// the sample is skipped.
func WatchOffsets(admin *servers.Admin, brokers []string, group, topic string, db *sql.DB) (*Offsets, error) {
	tail, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(time.Second), kgo.RequestTimeoutOverhead(answerTimeout))
	if err != nil {
		return nil, fmt.Errorf("watch offsets: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	o := &Offsets{admin: admin, tail: tail, group: group, topic: topic, db: db, cancel: cancel,
		arrived: make(chan struct{}), log: map[int][]string{}, committed: map[int]int64{}, checked: map[int]int64{}}
	o.ended.Go(func() { o.follow(ctx) })
	o.ended.Go(func() { o.sample(ctx) })
	return o, nil
}

// follow reads the topic.
func (o *Offsets) follow(ctx context.Context) {
	for {
		fetches := o.tail.PollFetches(ctx)
		if ctx.Err() != nil {
			return
		}
		o.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			p := int(r.Partition)
			if r.Offset != int64(len(o.log[p])) {
				o.report.Details = append(o.report.Details, fmt.Sprintf("topic %s/%d has a gap: offset %d follows %d", o.topic, p,
					r.Offset, len(o.log[p])-1))
				o.report.PastUnstored++
			}
			id := ""
			for _, h := range r.Headers {
				if h.Key == idHeader {
					id = string(h.Value)
				}
			}
			o.log[p] = append(o.log[p], id)
		})
		close(o.arrived)
		o.arrived = make(chan struct{})
		o.mu.Unlock()
	}
}

func (o *Offsets) sample(ctx context.Context) {
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		o.look(ctx)
	}
}

// Aside runs f while no sample is taken. A broker that was frozen reports old offsets until it
// learns that another broker coordinates the group.
func (o *Offsets) Aside(f func() error) error {
	o.asking.Lock()
	defer o.asking.Unlock()
	return f()
}

// look takes one sample and checks it before the next is taken.
func (o *Offsets) look(ctx context.Context) {
	offsets, at, err := o.ask(ctx)
	if err != nil {
		return // the broker is down
	}
	o.mu.Lock()
	o.report.Samples++
	for partition, offset := range offsets {
		before, known := o.committed[partition]
		if known && offset < before {
			o.report.Backwards++
			o.report.Details = append(o.report.Details, fmt.Sprintf("%s/%d: committed offset %d after %d", o.topic, partition,
				offset, before))
		}
		if !known || offset > before {
			o.committed[partition] = offset
		}
	}
	o.mu.Unlock()
	for partition, offset := range offsets {
		o.judge(ctx, partition, offset, at)
	}
}

func (o *Offsets) ask(ctx context.Context) (offsets map[int]int64, at time.Time, err error) {
	o.asking.Lock()
	defer o.asking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	offsets, err = o.admin.Committed(ctx, o.group, o.topic)
	return offsets, time.Now(), err
}

const storedQuery = `
SELECT u.position - 1 FROM unnest($1::text[]) WITH ORDINALITY AS u(id, position)
WHERE u.id <> '' AND NOT EXISTS (SELECT FROM all_messages m WHERE m.id = u.id AND m.received_at <= $2)
UNION ALL
SELECT u.position - 1 FROM unnest($1::text[]) WITH ORDINALITY AS u(id, position)
WHERE u.id = '' AND NOT EXISTS (SELECT FROM inbox_rejected_messages r
	WHERE r.topic = $3 AND r."partition" = $4 AND r.record_offset = $5 + u.position - 1 AND r.rejected_at <= $2)`

// judge checks every record below a committed offset, as of the moment of the sample.
func (o *Offsets) judge(ctx context.Context, partition int, offset int64, at time.Time) {
	for {
		o.mu.Lock()
		from, have, arrived := o.checked[partition], int64(len(o.log[partition])), o.arrived
		var ids []string
		if have >= offset && offset > from {
			ids = o.log[partition][from:offset]
		}
		o.mu.Unlock()
		if offset <= from {
			return
		}
		if ids == nil { // committed before the topic has been read this far
			select {
			case <-arrived:
				continue
			case <-ctx.Done():
				return
			}
		}
		passed, err := o.unstored(ctx, ids, partition, from, at)
		if err != nil {
			select { // the database is down; a later query as of that moment gives the same result
			case <-time.After(sampleInterval):
				continue
			case <-ctx.Done():
				return
			}
		}
		o.mu.Lock()
		o.checked[partition] = offset
		o.report.PastUnstored += len(passed)
		for _, i := range passed[:min(len(passed), 5)] {
			o.report.Details = append(o.report.Details,
				fmt.Sprintf("%s/%d: committed offset %d passed offset %d (%q), which was not stored then", o.topic, partition,
					offset, from+i, ids[i]))
		}
		o.mu.Unlock()
		return
	}
}

func (o *Offsets) unstored(
	ctx context.Context, ids []string, partition int, from int64, at time.Time,
) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	rows, err := o.db.QueryContext(ctx, storedQuery, ids, at.UTC(), o.topic, partition, from)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var passed []int64
	for rows.Next() {
		var i int64
		if err := rows.Scan(&i); err != nil {
			return nil, err
		}
		passed = append(passed, i)
	}
	return passed, rows.Err()
}

// Committed returns the sum of the highest committed offsets, and the topic's length as far as it
// was read.
func (o *Offsets) Committed() (committed, length int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, offset := range o.committed {
		committed += max(offset, 0)
	}
	for _, ids := range o.log {
		length += int64(len(ids))
	}
	return committed, length
}

// Skipped returns how many records of the topic, as far as it was read, are stored neither as
// messages nor as rejected.
func (o *Offsets) Skipped(ctx context.Context) (skipped int, err error) {
	o.mu.Lock()
	log := maps.Clone(o.log)
	o.mu.Unlock()
	for partition, ids := range log {
		passed, err := o.unstored(ctx, ids, partition, 0, time.Now())
		if err != nil {
			return 0, fmt.Errorf("look for skipped records: %w", err)
		}
		skipped += len(passed)
	}
	return skipped, nil
}

// Report returns the result so far.
func (o *Offsets) Report() OffsetReport {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.report
	r.Details = append([]string(nil), r.Details...)
	return r
}

// Stop ends the watch and returns the result.
func (o *Offsets) Stop() OffsetReport {
	o.cancel()
	o.ended.Wait()
	o.tail.Close()
	return o.Report()
}
