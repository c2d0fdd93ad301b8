package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"go.uber.org/zap"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// Move is what AddShard has done.
type Move struct {
	From        map[int]int64 // the offset at which the new shard begins each partition
	Uncommitted int64         // records that the killed owner had stored without committing their offsets
	Kills       int
}

// AddShard has a new shard take over partitions, while records arrive and the other shards work. At no time does a
// partition have two owners, and the new owner begins where the old one has ended:
//
//  1. A crash comes first, to show what it takes: the owner starts again as it was, until it has committed what it has
//     stored. Only an offset that is committed may be carried over.
//  2. The owners stop. The partitions' offsets are noted, and deleted from the owners' groups: an owner that is rolled
//     back to the old table then reads nothing of them.
//  3. The table changes. The owners start without the partitions, whose records wait in Kafka, and handle what they
//     have stored. So no key's messages are handled by both shards at once.
//  4. What handlers have written about the partitions' keys moves, too.
//  5. The new shard learns the IDs of the earlier records, so that what is sent again stays a duplicate.
//  6. The offsets are set for the new group, and its process starts.
//
// docs/scaling.md has what this program need not think of, such as handlers that send messages.
func (c *Cluster) AddShard(ctx context.Context, shard string, partitions []int) (*Move, error) {
	m, owners := &Move{From: map[int]int64{}}, map[int]string{}
	for _, p := range partitions {
		owners[p] = c.table[p]
	}
	stopped := slices.Compact(slices.Sorted(maps.Values(owners)))
	if err := c.crash(ctx, partitions[0], m); err != nil {
		return m, err
	}
	for _, owner := range stopped {
		if err := c.processes[owner].Stop(); err != nil { // it has exited: a process that only is silent may go on
			return m, err
		}
	}
	for _, p := range partitions {
		var err error
		if m.From[p], err = c.takeOffset(ctx, owners[p], p); err != nil {
			return m, err
		}
		c.table[p] = shard
		c.env.Say("partition %d of %s goes on at offset %d in %s", p, owners[p], m.From[p], shard)
	}
	for _, owner := range stopped {
		if err := c.Start(owner); err != nil {
			return m, err
		}
		if err := drain(ctx, c.databases[owner].DB); err != nil {
			return m, fmt.Errorf("drain %s: %w", owner, err)
		}
	}
	for _, p := range partitions {
		from, to := c.databases[owners[p]].DB, c.databases[shard].DB
		if err := errors.Join(moveRows[Account](ctx, from, to, p), moveRows[Entry](ctx, from, to, p)); err != nil {
			return m, fmt.Errorf("move the rows of partition %d: %w", p, err)
		}
	}
	if err := c.learn(ctx, shard, m.From); err != nil {
		return m, err
	}
	return m, errors.Join(c.begin(ctx, shard, m.From), c.Start(shard))
}

// crash kills a partition's owner when it has stored records without committing their offsets. Then it starts the owner
// again as it was, and waits until it has committed all that was there.
func (c *Cluster) crash(ctx context.Context, partition int, m *Move) error {
	owner := c.table[partition]
	uncommitted := func(ctx context.Context) (int64, error) {
		stored, err := c.storedTo(ctx, owner, partition)
		if err != nil {
			return 0, err
		}
		committed, err := c.committed(ctx, owner, partition)
		return stored - committed, err
	}
	for m.Uncommitted <= 0 { // it may commit between the look and the kill
		err := demo.Watch(ctx, uncommitted, func(n int64) (bool, error) { return n > 0, c.processes[owner].Unexpected() })
		if err != nil {
			return err
		}
		if err := c.processes[owner].Kill(); err != nil {
			return err
		}
		m.Kills++
		if m.Uncommitted, err = uncommitted(ctx); err != nil {
			return err
		}
		if err := c.processes[owner].Start(); err != nil {
			return err
		}
	}
	end, err := c.end(ctx, partition)
	if err != nil {
		return err
	}
	return demo.Watch(ctx, func(ctx context.Context) (int64, error) { return c.committed(ctx, owner, partition) },
		func(at int64) (bool, error) { return at >= end, c.processes[owner].Unexpected() })
}

// storedTo returns the offset after the last record of a partition that its owner has stored as a message. It shows
// whether a stop was clean, and is none to go on at: records that are kept in no message are passed by it.
func (c *Cluster) storedTo(ctx context.Context, owner string, partition int) (next int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var stored []string
	err = c.databases[owner].DB.WithContext(ctx).Model(&models.Message{}).Pluck("serialized_properties", &stored).Error
	if err != nil {
		return 0, fmt.Errorf("read the messages of %s: %w", owner, err)
	}
	for _, text := range stored {
		var properties struct {
			Kafka struct {
				Partition int
				Offset    int64
			}
		}
		if err := json.Unmarshal([]byte(text), &properties); err != nil {
			return 0, err
		}
		if properties.Kafka.Partition == partition {
			next = max(next, properties.Kafka.Offset+1)
		}
	}
	return next, nil
}

// takeOffset returns the offset that the group of a stopped owner has committed, and deletes it.
func (c *Cluster) takeOffset(ctx context.Context, owner string, partition int) (int64, error) {
	at, err := c.committed(ctx, owner, partition)
	if err != nil {
		return 0, err
	}
	if stored, err := c.storedTo(ctx, owner, partition); err != nil || stored > at {
		return 0, errors.Join(err, fmt.Errorf("%s has not committed all that it has stored of partition %d", owner, partition))
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	of := kadm.TopicsSet{}
	of.Add(c.topic, int32(partition))
	deleted, err := c.admin.DeleteOffsets(ctx, c.group(owner), of)
	if err = errors.Join(err, deleted.Error()); err != nil {
		return 0, fmt.Errorf("delete the offset of group %q: %w", c.group(owner), err)
	}
	return at, nil
}

// drain waits until nothing is open of what is stored by now. Deposits cause no further messages, so waiting once is
// enough. A poisoned message keeps it waiting: an operator retries or discards it.
func drain(ctx context.Context, db *gorm.DB) error {
	var last int64
	err := db.WithContext(ctx).Model(&models.Message{}).Select("COALESCE(MAX(number), 0)").Scan(&last).Error
	if err != nil {
		return err
	}
	open := func(ctx context.Context) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var n int64
		err := db.WithContext(ctx).Model(&models.HandlerStatus{}).
			Where("message_number <= ? AND completed_at IS NULL", last).Count(&n).Error
		return int(n), err
	}
	return demo.Watch(ctx, open, func(n int) (bool, error) { return n == 0, nil })
}

// moveRows copies a table's rows of a partition and then deletes them where they were. A copy replaces what a move that
// was given up has left.
func moveRows[R any](ctx context.Context, from, to *gorm.DB, partition int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var rows []R
	its := map[string]any{"partition": partition}
	err := from.WithContext(ctx).Where(its).Find(&rows).Error
	if err == nil && len(rows) > 0 {
		err = to.WithContext(ctx).Clauses(clause.OnConflict{UpdateAll: true}).CreateInBatches(rows, 500).Error
	}
	if err == nil {
		err = from.WithContext(ctx).Where(its).Delete(new(R)).Error
	}
	return err
}

// learn has the new shard store the messages that the owners have handled, and discards them, before anything runs
// there. It creates the shard's tables.
func (c *Cluster) learn(ctx context.Context, shard string, to map[int]int64) error {
	cfg, err := c.config(shard)
	if err != nil {
		return err
	}
	ib, err := NewInbox(cfg, c.databases[shard].DB, &Book{}, zap.NewNop())
	if err != nil {
		return err
	}
	if err := ib.Migrate(ctx); err != nil {
		return err
	}
	o, err := ib.Ops()
	if err != nil {
		return err
	}
	const actor = ops.Actor("add-shard")
	again := envelope.ReadAgain{Channel: channel, Topic: c.topic}
	for _, p := range slices.Sorted(maps.Keys(to)) {
		if to[p] > 0 {
			again.Ranges = append(again.Ranges, envelope.Range{Partition: p, To: to[p]})
		}
	}
	if len(again.Ranges) == 0 { // that would mean all
		return nil
	}
	learned, err := o.ReadAgain(ctx, actor, again)
	if err != nil {
		return err
	}
	if len(learned.Gaps)+len(learned.Unconsumed)+int(learned.Bad) > 0 {
		return fmt.Errorf("not all earlier messages are known: %+v", learned)
	}
	handled := ops.Filter{States: []ops.State{ops.StatePending}, HandlerKeys: []string{bookDeposit}}
	result, err := o.DiscardMatching(ctx, actor, handled, ops.Bulk{Reason: "handled by the partition's last owner"})
	if err == nil && result.Skipped > 0 {
		err = errors.New("not all earlier messages are discarded")
	}
	return err
}
