package workload

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/gorm-inbox/inbox/integration/servers"
)

// Offsets watches a group's committed offsets. They must never move back, and never pass a record
// that is not stored (contract 7.1). It reads each commit from Kafka's own log of them, because a
// coordinator reports old offsets while it does not know that another broker took over, and the
// records at each offset from the topic itself.
//
// A commit is compared with what was stored when Kafka received it. A message's received_at is
// earlier than its commit in the database. So a message that was received after Kafka received the
// offset, or is not stored, was passed.
type Offsets struct {
	client *kgo.Client
	group  string
	topic  string
	db     *sql.DB
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu        sync.Mutex
	grown     chan struct{}    // closed and replaced when log or commits grow
	read      map[string]int64 // by partition, of both topics: records before it were read
	log       map[int][]string // partition → message ID by offset, "" for a bad record
	commits   []commit         // not yet judged
	committed map[int]int64    // the highest seen
	checked   map[int]int64    // all records below are judged
	judging   bool             // the database is asked about a commit
	report    OffsetReport
}

type commit struct {
	partition int
	offset    int64
	at        time.Time // when Kafka received it
}

// OffsetReport is the result of watching.
type OffsetReport struct {
	Commits      int
	Backwards    int // how often a partition's offset had moved back
	PastUnstored int // records that a committed offset had passed before they were stored
	Details      []string
}

// commitLog is the topic in which Kafka stores commits. All commits of a group are in one partition,
// so that their order is the log's.
const commitLog = "__consumer_offsets"

// retryInterval is the pause between two queries while the database is unreachable.
const retryInterval = 100 * time.Millisecond

// WatchOffsets starts watching. Call Stop to end it.
func WatchOffsets(
	ctx context.Context, admin *servers.Admin, brokers []string, group, topic string, db *sql.DB,
) (*Offsets, error) {
	for { // the first request for a group makes Kafka create the log of commits
		_, err := admin.Committed(ctx, group, topic)
		if err == nil {
			break
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return nil, fmt.Errorf("watch offsets: %w", errors.Join(err, ctx.Err()))
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic, commitLog),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(time.Second), kgo.RequestTimeoutOverhead(answerTimeout))
	if err != nil {
		return nil, fmt.Errorf("watch offsets: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // Stop alone ends the watch
	o := &Offsets{client: client, group: group, topic: topic, db: db, cancel: cancel,
		grown: make(chan struct{}), read: map[string]int64{}, log: map[int][]string{}, committed: map[int]int64{},
		checked: map[int]int64{}}
	o.ended.Go(func() { o.follow(ctx) })
	o.ended.Go(func() { o.judge(ctx) })
	return o, nil
}

// follow reads the topic and the log of commits.
func (o *Offsets) follow(ctx context.Context) {
	for {
		fetches := o.client.PollFetches(ctx)
		if ctx.Err() != nil {
			return
		}
		o.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			o.read[partitionOf(r.Topic, r.Partition)] = r.Offset + 1
			if r.Topic == o.topic {
				o.addRecord(r)
			} else {
				o.addCommit(r)
			}
		})
		close(o.grown)
		o.grown = make(chan struct{})
		o.mu.Unlock()
	}
}

func partitionOf(topic string, partition int32) string { return fmt.Sprintf("%s/%d", topic, partition) }

func (o *Offsets) addRecord(r *kgo.Record) {
	p := int(r.Partition)
	if r.Offset != int64(len(o.log[p])) {
		o.report.PastUnstored++
		o.detail("%s/%d has a gap: offset %d follows %d", o.topic, p, r.Offset, len(o.log[p])-1)
	}
	id := ""
	for _, h := range r.Headers {
		if h.Key == idHeader {
			id = string(h.Value)
		}
	}
	o.log[p] = append(o.log[p], id)
}

// addCommit handles a record of the log of commits. It skips members of groups, and offsets of other groups and topics.
func (o *Offsets) addCommit(r *kgo.Record) {
	const lastVersion = 1 // of keys that name an offset
	if len(r.Key) < 2 || binary.BigEndian.Uint16(r.Key) > lastVersion {
		return
	}
	var key kmsg.OffsetCommitKey
	if err := key.ReadFrom(r.Key); err != nil {
		o.report.Backwards++ // a commit that is not judged must not pass
		o.detail("key at offset %d: %v", r.Offset, err)
		return
	}
	if key.Group != o.group || key.Topic != o.topic {
		return
	}
	p := int(key.Partition)
	var value kmsg.OffsetCommitValue
	if err := value.ReadFrom(r.Value); err != nil { // also of a commit that was deleted, which has no value
		o.report.Backwards++
		o.detail("%s/%d: commit at offset %d: %v", o.topic, p, r.Offset, err)
		return
	}
	o.report.Commits++
	if before := o.committed[p]; value.Offset < before {
		o.report.Backwards++
		o.detail("%s/%d: committed offset %d after %d", o.topic, p, value.Offset, before)
	}
	o.committed[p] = max(o.committed[p], value.Offset)
	at := time.UnixMilli(value.CommitTimestamp + 1) // Kafka cuts it to milliseconds, the database to microseconds
	o.commits = append(o.commits, commit{p, value.Offset, at})
}

func (o *Offsets) detail(format string, args ...any) {
	o.report.Details = append(o.report.Details, fmt.Sprintf(format, args...))
}

// judge checks every record below each committed offset, as of the moment of the commit.
func (o *Offsets) judge(ctx context.Context) {
	for {
		c, ids, from, ok := o.next(ctx)
		if !ok {
			return
		}
		passed, err := o.unstored(ctx, ids, c.partition, from, c.at)
		for err != nil { // the database is down; a later query as of that moment gives the same result
			select {
			case <-time.After(retryInterval):
			case <-ctx.Done():
				return
			}
			passed, err = o.unstored(ctx, ids, c.partition, from, c.at)
		}
		o.mu.Lock()
		o.judging = false
		o.checked[c.partition] = c.offset
		o.report.PastUnstored += len(passed)
		for _, i := range passed[:min(len(passed), 5)] {
			o.detail("%s/%d: committed offset %d passed offset %d (%q), which was not stored then", o.topic, c.partition,
				c.offset, from+i, ids[i])
		}
		o.mu.Unlock()
	}
}

// next waits for a commit with records that are not yet judged, and for the topic to be read as far
// as that. It returns the IDs of these records and the first one's offset.
func (o *Offsets) next(ctx context.Context) (c commit, ids []string, from int64, ok bool) {
	for {
		o.mu.Lock()
		grown := o.grown
		for len(o.commits) > 0 && o.commits[0].offset <= o.checked[o.commits[0].partition] {
			o.commits = o.commits[1:]
		}
		if len(o.commits) > 0 {
			c = o.commits[0]
			from = o.checked[c.partition]
			if log := o.log[c.partition]; int64(len(log)) >= c.offset {
				o.commits, o.judging = o.commits[1:], true
				o.mu.Unlock()
				return c, log[from:c.offset], from, true
			}
		}
		o.mu.Unlock()
		select {
		case <-grown:
		case <-ctx.Done():
			return commit{}, nil, 0, false
		}
	}
}

// unstored returns the positions among ids, of records from the offset on, that were not stored at that time.
func (o *Offsets) unstored(
	ctx context.Context, ids []string, partition int, from int64, at time.Time,
) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	messages, rejected := map[string]bool{}, map[int64]bool{}
	var named []any
	for _, id := range ids {
		if id != "" {
			named = append(named, id)
		}
	}
	const most = 1000 // parameters of a statement
	for part := range slices.Chunk(named, most) {
		err := each(ctx, o.db, func(rows *sql.Rows) error {
			var id string
			err := rows.Scan(&id)
			messages[id] = true
			return err
		}, `SELECT id FROM all_messages WHERE received_at <= $1 AND id IN (`+list(2, len(part))+`)`,
			append([]any{at.UTC()}, part...)...)
		if err != nil {
			return nil, err
		}
	}
	if len(named) < len(ids) {
		err := each(ctx, o.db, func(rows *sql.Rows) error {
			var offset int64
			err := rows.Scan(&offset)
			rejected[offset-from] = true
			return err
		}, `SELECT record_offset FROM inbox_rejected_messages WHERE topic = $1 AND "partition" = $2 AND record_offset >= $3
			AND record_offset < $4 AND rejected_at <= $5`, o.topic, partition, from, from+int64(len(ids)), at.UTC())
		if err != nil {
			return nil, err
		}
	}
	var passed []int64
	for i, id := range ids {
		if id == "" && !rejected[int64(i)] || id != "" && !messages[id] {
			passed = append(passed, int64(i))
		}
	}
	return passed, nil
}

// Committed returns the sum of the highest committed offsets, and the topic's length, both as far
// as they were read.
func (o *Offsets) Committed() (committed, length int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, offset := range o.committed {
		committed += offset
	}
	for _, ids := range o.log {
		length += int64(len(ids))
	}
	return committed, length
}

// CatchUp waits until everything is judged that the topic and the log of commits have now.
func (o *Offsets) CatchUp(ctx context.Context) error {
	ends, err := kadm.NewClient(o.client).ListEndOffsets(ctx, o.topic, commitLog)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("read the ends of %s and %s: %w", o.topic, commitLog, err)
	}
	for {
		o.mu.Lock()
		left := len(o.commits)
		if o.judging {
			left++
		}
		ends.Each(func(end kadm.ListedOffset) {
			left += int(max(end.Offset-o.read[partitionOf(end.Topic, end.Partition)], 0))
		})
		o.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return fmt.Errorf("%d commits or records are not judged: %w", left, ctx.Err())
		}
	}
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
	o.client.Close()
	return o.Report()
}
