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

// AddShard has a new shard take over partitions, while records arrive and the other shards work. At no time does a
// partition have two owners, and the new owner begins when the old one has ended:
//
//  1. The table changes. The owners stop, and start without the partitions, whose records wait in Kafka.
//  2. Each owner handles what it has stored of them. So no key's messages are handled by both shards at once.
//  3. The offset to go on at is found: that after the last record that the owner has stored.
//  4. What handlers have written about the partitions' keys moves, too.
//  5. The new shard learns the IDs of the earlier records, so that what is sent again stays a duplicate.
//  6. The offsets are committed for the new group, and its process starts.
//
// Each step can be repeated after a crash until the new shard has started.
func (c *Cluster) AddShard(ctx context.Context, shard string, partitions []int) error {
	owners := map[int]string{}
	for _, p := range partitions {
		owners[p], c.table[p] = c.table[p], shard
	}
	for i, owner := range slices.Compact(slices.Sorted(maps.Values(owners))) {
		// the workers that may still store records of the partitions
		workers, err := aliveWorkers(ctx, c.databases[owner].DB)
		if err != nil {
			return err
		}
		stop := c.processes[owner].Stop
		if i == 0 {
			stop = func() error { return c.crash(ctx, owner, partitions[0]) }
		}
		if err := errors.Join(stop(), c.Start(owner)); err != nil {
			return err
		}
		if err := drain(ctx, c.databases[owner].DB, workers); err != nil {
			return fmt.Errorf("drain %s: %w", owner, err)
		}
	}
	offsets, ranges := kadm.Offsets{}, []envelope.Range(nil)
	for _, p := range partitions {
		next, err := c.nextOffset(ctx, owners[p], p)
		if err != nil {
			return err
		}
		if err := moveAccounts(ctx, c.databases[owners[p]].DB, c.databases[shard].DB, p); err != nil {
			return err
		}
		offsets.AddOffset(c.topic, int32(p), next, -1)
		if next > 0 {
			ranges = append(ranges, envelope.Range{Partition: p, From: 0, To: next})
		}
		c.env.Say("partition %d of %s goes on at offset %d in %s", p, owners[p], next, shard)
	}
	if err := c.learn(ctx, shard, ranges); err != nil {
		return err
	}
	if err := c.admin.CommitAllOffsets(ctx, c.group(shard), offsets); err != nil {
		return fmt.Errorf("commit the offsets of group %q: %w", c.group(shard), err)
	}
	return c.Start(shard)
}

// aliveWorkers returns the IDs of a database's workers that have neither stopped nor been declared dead.
func aliveWorkers(ctx context.Context, db *gorm.DB) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = db.WithContext(ctx).Model(&models.Worker{}).Where("stopped_at IS NULL AND released_at IS NULL").
		Pluck("id", &ids).Error
	return ids, err
}

// drain waits until those workers have ended, and then until nothing is open of what is stored by now. A poisoned
// message keeps it waiting: an operator retries or discards it.
func drain(ctx context.Context, db *gorm.DB, workers []string) error {
	left := func(ctx context.Context) (int, error) {
		alive, err := aliveWorkers(ctx, db)
		return len(slices.DeleteFunc(alive, func(id string) bool { return !slices.Contains(workers, id) })), err
	}
	none := func(n int) (bool, error) { return n == 0, nil }
	if err := demo.Watch(ctx, left, none); err != nil {
		return err
	}
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
	return demo.Watch(ctx, open, none)
}

// nextOffset returns the first offset of a partition that its owner has not stored. What the group has committed may be
// less, after a crash; what is stored may be less, where the last records were not kept as messages.
func (c *Cluster) nextOffset(ctx context.Context, owner string, partition int) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	next, err := c.committed(ctx, owner, partition)
	if err != nil {
		return 0, err
	}
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

// moveAccounts copies the accounts of a partition and then deletes them where they were.
func moveAccounts(ctx context.Context, from, to *gorm.DB, partition int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var accounts []Account
	its := map[string]any{"partition": partition}
	err := from.WithContext(ctx).Where(its).Find(&accounts).Error
	if err == nil && len(accounts) > 0 {
		err = to.WithContext(ctx).Clauses(clause.OnConflict{DoNothing: true}).CreateInBatches(accounts, 500).Error
	}
	if err == nil {
		err = from.WithContext(ctx).Where(its).Delete(&Account{}).Error
	}
	if err != nil {
		return fmt.Errorf("move the accounts of partition %d: %w", partition, err)
	}
	return nil
}

// learn has the new shard store the messages that the owners have handled, and discards them, before anything runs
// there. It creates the shard's tables.
func (c *Cluster) learn(ctx context.Context, shard string, ranges []envelope.Range) error {
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
	if len(ranges) > 0 { // none would mean all
		again := envelope.ReadAgain{Channel: channel, Topic: c.topic, Ranges: ranges}
		if _, err := o.ReadAgain(ctx, actor, again); err != nil {
			return err
		}
	}
	handled := ops.Filter{States: []ops.State{ops.StatePending}, HandlerKeys: []string{bookDeposit}}
	result, err := o.DiscardMatching(ctx, actor, handled, ops.Bulk{Reason: "handled by the partition's last owner"})
	if err == nil && result.Skipped > 0 {
		err = errors.New("not all earlier messages are discarded")
	}
	return err
}
