package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// Table names the shard that owns each partition. A partition has one owner by construction, so no two groups read it.
// It is the only place that says so: each process gets its partitions from it, and none guesses by a hash.
type Table []string

// firstTable divides eight partitions among four shards.
func firstTable() Table {
	return Table{"shard1", "shard2", "shard3", "shard4", "shard1", "shard2", "shard3", "shard4"}
}

// Of returns the partitions of a shard. A shard without any is an error: an empty list would not be a consumer's.
func (t Table) Of(shard string) (own []int, err error) {
	for partition, owner := range t {
		if owner == shard {
			own = append(own, partition)
		}
	}
	if len(own) == 0 {
		return nil, fmt.Errorf("shard %q owns no partition of the table", shard)
	}
	return own, nil
}

// Shards returns the names of the shards that own partitions.
func (t Table) Shards() []string { return slices.Compact(slices.Sorted(slices.Values(t))) }

// Cluster is the topic, the databases and the processes of the shards. It is not safe for concurrent use.
type Cluster struct {
	env       *demo.Environment
	broker    *demo.Broker
	admin     *kadm.Client
	topic     string
	table     Table
	databases map[string]*demo.Database // by shard
	processes map[string]*demo.Process  // by shard
	started   int                       // processes so far
}

// Open creates the topic and the databases, also that of the shard that is added later. They end with env.
func Open(ctx context.Context, env *demo.Environment, brokers string) (*Cluster, error) {
	c := &Cluster{env: env, topic: "deposits." + env.Run, table: firstTable(), databases: map[string]*demo.Database{},
		processes: map[string]*demo.Process{}}
	shards := append(c.table.Shards(), added)
	var err error
	for _, shard := range shards {
		if c.databases[shard], err = env.Database(ctx, shard); err != nil {
			return nil, err
		}
		if err := c.databases[shard].DB.WithContext(ctx).AutoMigrate(&Account{}, &Entry{}); err != nil {
			return nil, err
		}
	}
	if c.broker, err = env.Broker(ctx, brokers, nil); err != nil {
		return nil, err
	}
	c.admin = kadm.NewClient(c.broker.Client)
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, err := c.admin.CreateTopic(ctx, int32(len(c.table)), 1, nil, c.topic); err != nil {
		return nil, fmt.Errorf("create topic %q: %w", c.topic, err)
	}
	env.Cleanup(func(ctx context.Context, keep bool) error {
		if keep {
			return nil
		}
		_, topicErr := c.admin.DeleteTopics(ctx, c.topic)
		_, groupErr := c.admin.DeleteGroups(ctx, c.groups(shards)...)
		return errors.Join(topicErr, groupErr)
	})
	return c, nil
}

// group is the consumer group of a shard: its rebalances stop no other shard.
func (c *Cluster) group(shard string) string { return shard + "." + c.env.Run }

func (c *Cluster) groups(shards []string) []string {
	groups := make([]string, len(shards))
	for i, shard := range shards {
		groups[i] = c.group(shard)
	}
	return groups
}

// config returns what a process of the shard gets from the table.
func (c *Cluster) config(shard string) (Config, error) {
	own, err := c.table.Of(shard)
	cfg := Config{Shard: shard, Database: c.databases[shard].DSN, Brokers: c.broker.Addresses, Topic: c.topic,
		Group: c.group(shard), Partitions: own, Session: c.broker.Session, Calls: c.env.File("calls.log")}
	if shard == added {
		cfg.StartOffset = kafkaconsumer.None // its partitions begin where their last owner has ended, or not at all
	}
	return cfg, err
}

// Start starts a process of a shard with the partitions that the table has for it now.
func (c *Cluster) Start(shard string) error {
	cfg, err := c.config(shard)
	if err != nil {
		return err
	}
	c.started++
	prepared, err := c.env.Processes([]string{fmt.Sprintf("%s-%d", shard, c.started)}, func(string) any { return cfg })
	if err != nil {
		return err
	}
	c.processes[shard] = prepared[0]
	return prepared[0].Start()
}

// Stop stops all processes.
func (c *Cluster) Stop() error {
	var problems []error
	for _, p := range c.Workers() {
		problems = append(problems, p.Stop())
	}
	return errors.Join(problems...)
}

// Workers returns the processes in the order of their names.
func (c *Cluster) Workers() (workers demo.Workers) {
	for _, p := range c.processes {
		workers = append(workers, p)
	}
	slices.SortFunc(workers, func(a, b *demo.Process) int { return cmp.Compare(a.Name, b.Name) })
	return workers
}

// Progress is what shards have stored, and how many of their records are unread.
type Progress struct {
	demo.Tally
	Unread int64
}

func (p Progress) done() bool { return p.Unread+p.Waiting+p.Claimed == 0 }

// Progress counts. It counts what is unread first: what one count sees as done is there for the next.
func (c *Cluster) Progress(ctx context.Context, shards ...string) (p Progress, err error) {
	if p.Unread, err = c.unread(ctx, shards...); err != nil {
		return p, err
	}
	for _, shard := range shards {
		t, err := demo.ReadTally(ctx, c.databases[shard].DB)
		if err != nil {
			return p, err
		}
		p.Tally = p.Plus(t)
	}
	if p.Poisoned > 0 { // no deposit fails often enough for that
		return p, errors.New("a deposit is poisoned: its lane waits until an operator retries or discards it")
	}
	return p, nil
}

// unread counts the records of the shards' partitions whose offsets their groups have not committed.
func (c *Cluster) unread(ctx context.Context, shards ...string) (unread int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ends, err := c.admin.ListEndOffsets(ctx, c.topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return 0, fmt.Errorf("end of topic %q: %w", c.topic, err)
	}
	for _, shard := range shards {
		own, err := c.table.Of(shard)
		if err != nil {
			return 0, err
		}
		for _, partition := range own {
			end, _ := ends.Lookup(c.topic, int32(partition))
			committed, err := c.committed(ctx, shard, partition)
			if err != nil {
				return 0, err
			}
			unread += end.Offset - committed
		}
	}
	return unread, nil
}

// committed returns the offset that a shard's group has committed, 0 if there is none.
func (c *Cluster) committed(ctx context.Context, shard string, partition int) (int64, error) {
	offsets, err := c.admin.FetchOffsets(ctx, c.group(shard))
	// The group does not exist before its first member joins.
	if err = errors.Join(err, offsets.Error()); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return 0, fmt.Errorf("offsets of group %q: %w", c.group(shard), err)
	}
	at, _ := offsets.Lookup(c.topic, int32(partition))
	return max(at.At, 0), nil
}

// crash kills a shard's process, if possible when it has stored records of a partition and not committed their offsets.
func (c *Cluster) crash(ctx context.Context, shard string, partition int) error {
	began := time.Now()
	uncommitted := func(ctx context.Context) (int64, error) {
		next, err := c.nextOffset(ctx, shard, partition)
		if err != nil {
			return 0, err
		}
		committed, err := c.committed(ctx, shard, partition)
		return next - committed, err
	}
	err := demo.Watch(ctx, uncommitted, func(n int64) (bool, error) {
		return n > 0 || time.Since(began) > 3*time.Second, nil
	})
	return errors.Join(err, c.processes[shard].Kill())
}

// Outage blocks a shard's database while send runs and until all other shards have done what is theirs. It returns how
// many records then wait for the blocked one.
func (c *Cluster) Outage(
	ctx context.Context, shard string, send func(ctx context.Context) error,
) (waited int64, err error) {
	release, err := block(ctx, c.databases[shard])
	if err != nil {
		return 0, fmt.Errorf("block the database of %s: %w", shard, err)
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := send(ctx); err != nil {
		return 0, err
	}
	others := slices.DeleteFunc(c.table.Shards(), func(other string) bool { return other == shard })
	err = demo.Watch(ctx, func(ctx context.Context) (Progress, error) { return c.Progress(ctx, others...) },
		func(p Progress) (bool, error) {
			c.env.Show("without %s: %s", shard, p)
			return p.done(), c.Workers().Unexpected()
		})
	if err != nil {
		return 0, err
	}
	return c.unread(ctx, shard)
}

// block keeps the inbox of a database from storing anything until release is called.
func block(ctx context.Context, d *demo.Database) (release func() error, err error) {
	tx := d.DB.WithContext(ctx).Begin() // on SQLite this takes the lock for writing
	switch {
	case tx.Error != nil:
		return nil, tx.Error
	case demo.OnMySQL(d.DSN):
		err = tx.Exec("LOCK TABLES inbox_messages WRITE").Error
		return func() error { return errors.Join(tx.Exec("UNLOCK TABLES").Error, tx.Rollback().Error) }, err
	case !demo.OnSQLite(d.DSN):
		err = tx.Exec("LOCK TABLE inbox_messages IN ACCESS EXCLUSIVE MODE").Error
	}
	return func() error { return tx.Rollback().Error }, err
}
