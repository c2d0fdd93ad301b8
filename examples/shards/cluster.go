package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

// Table names the shard that owns each partition. A partition has one owner by construction, so no two groups read it.
// It is the only place that says so: each process gets its partitions from it, and none guesses by a hash.
type Table []string

// firstTable divides eight partitions among four shards.
func firstTable() Table {
	return Table{"shard1", "shard2", "shard3", "shard4", "shard1", "shard2", "shard3", "shard4"}
}

// Of returns the partitions of a shard. A shard without any is an error: a nil list would mean all.
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
	site      string                    // of the dashboards
}

// Open creates the topic and the databases, also that of the shard that is added later. Each first owner begins its
// partitions at offset 0: with StartOffset None a group reads nothing without one. All of it ends with env.
func Open(ctx context.Context, env *demo.Environment, brokers string) (*Cluster, error) {
	c := &Cluster{env: env, topic: "deposits." + env.Run, table: firstTable(), databases: map[string]*demo.Database{},
		processes: map[string]*demo.Process{}}
	env.Apart = true
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
	creating, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, err := c.admin.CreateTopic(creating, int32(len(c.table)), 1, nil, c.topic); err != nil {
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
	for partition, owner := range c.table {
		err = errors.Join(err, c.begin(ctx, owner, map[int]int64{partition: 0}))
	}
	return c, errors.Join(err, c.ServeDashboards(ctx))
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
	return Config{Shard: shard, Database: c.databases[shard].DSN, Brokers: c.broker.Addresses, Topic: c.topic,
		Group: c.group(shard), Partitions: own, Session: c.broker.Session, Calls: c.env.File("calls.log")}, err
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

// Await waits until shards have done all that is theirs.
func (c *Cluster) Await(ctx context.Context, shards ...string) error {
	return demo.Watch(ctx, func(ctx context.Context) (Progress, error) { return c.Progress(ctx, shards...) },
		func(p Progress) (bool, error) {
			c.env.Show("%s: %s", strings.Join(shards, ", "), p)
			return p.done(), c.Workers().Unexpected()
		})
}

// unread counts the records of the shards' partitions whose offsets their groups have not committed.
func (c *Cluster) unread(ctx context.Context, shards ...string) (unread int64, err error) {
	for _, shard := range shards {
		own, err := c.table.Of(shard)
		if err != nil {
			return 0, err
		}
		for _, partition := range own {
			end, err := c.end(ctx, partition)
			if err != nil {
				return 0, err
			}
			committed, err := c.committed(ctx, shard, partition)
			if err != nil {
				return 0, err
			}
			unread += end - committed
		}
	}
	return unread, nil
}

// end returns the offset at which a partition ends.
func (c *Cluster) end(ctx context.Context, partition int) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ends, err := c.admin.ListEndOffsets(ctx, c.topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return 0, fmt.Errorf("end of topic %q: %w", c.topic, err)
	}
	end, _ := ends.Lookup(c.topic, int32(partition))
	return end.Offset, nil
}

// committed returns the offset that a shard's group has committed.
func (c *Cluster) committed(ctx context.Context, shard string, partition int) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	offsets, err := c.admin.FetchOffsets(ctx, c.group(shard))
	at, ok := offsets.Lookup(c.topic, int32(partition))
	if err = errors.Join(err, offsets.Error()); err == nil && (!ok || at.At < 0) {
		err = fmt.Errorf("partition %d has none", partition)
	}
	if err != nil {
		return 0, fmt.Errorf("offsets of group %q: %w", c.group(shard), err)
	}
	return at.At, nil
}

// begin sets the offsets at which a shard begins its partitions. None of its processes may run.
func (c *Cluster) begin(ctx context.Context, shard string, at map[int]int64) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	offsets := kadm.Offsets{}
	for partition, offset := range at {
		offsets.AddOffset(c.topic, int32(partition), offset, -1)
	}
	if err := c.admin.CommitAllOffsets(ctx, c.group(shard), offsets); err != nil {
		return fmt.Errorf("set the offsets of group %q: %w", c.group(shard), err)
	}
	return nil
}

// Restart kills a shard's process and starts it again as it was, with the partitions that it had.
func (c *Cluster) Restart(shard string) error {
	p := c.processes[shard]
	if err := p.Kill(); err != nil {
		return err
	}
	return p.Start()
}

// Outage takes a shard's database away during a call.
func (c *Cluster) Outage(ctx context.Context, shard string, during func(ctx context.Context) error) (err error) {
	restore, err := cut(ctx, c.databases[shard], c.databases[added])
	if err != nil {
		return fmt.Errorf("take the database of %s away: %w", shard, err)
	}
	defer func() { err = errors.Join(err, restore()) }()
	return during(ctx)
}

// cut makes a database of PostgreSQL end all connections and refuse others, until restore is called. Another database
// serves for that. On MySQL and SQLite the inbox is locked instead.
func cut(ctx context.Context, d, other *demo.Database) (restore func() error, err error) {
	if demo.OnMySQL(d.DSN) || demo.OnSQLite(d.DSN) {
		tx := d.DB.WithContext(ctx).Begin() // on SQLite this takes the lock for writing
		if tx.Error != nil || demo.OnSQLite(d.DSN) {
			return func() error { return tx.Rollback().Error }, tx.Error
		}
		err := tx.Exec("LOCK TABLES inbox_messages WRITE").Error
		return func() error { return errors.Join(tx.Exec("UNLOCK TABLES").Error, tx.Rollback().Error) }, err
	}
	var name string
	if err := d.DB.WithContext(ctx).Raw("SELECT current_database()").Scan(&name).Error; err != nil {
		return nil, err
	}
	allow := func(ctx context.Context, allowed bool) error {
		return other.DB.WithContext(ctx).Exec(fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS %t", name, allowed)).Error
	}
	if err := allow(ctx, false); err != nil {
		return nil, err
	}
	err = other.DB.WithContext(ctx).Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ?",
		name).Error
	return func() error { return allow(context.WithoutCancel(ctx), true) }, err
}
