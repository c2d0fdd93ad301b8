package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/kafkaproxy"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// world is everything in a soak except the workers.
type world struct {
	seed      uint64
	began     time.Time
	dir       string // of the workers' logs
	product   product
	server    database        // the present one, which its track replaces in a failover
	database  route           // the workers' route to the server; nil if there is none
	judging   *workload.Cable // the judge's route; nil if there is none
	hosts     string          // the DSN of all servers of a cluster, or empty
	judgesDSN string
	pooler    *servers.PgBouncer // nil if there is none
	pooling   sync.Mutex         // held while the pooler is to be down, or is started
	disk      *disk              // of the server's data; nil if there is none
	cluster   *servers.Cluster
	proxies   []*kafkaproxy.Proxy // clients' routes to the brokers
	db        *sql.DB
	ledger    *workload.Ledger
	offsets   *workload.Offsets
	settings  workload.Settings
	watch     watch
	leftOut   []string // what the machine lacks, and why

	recreated int // how often the topic was created again; used only by Kafka's track
	saying    sync.Mutex
}

const (
	topic      = "jobs"
	outTopic   = "out"   // of what the handlers publish
	againTopic = "again" // is deleted and created again
	group      = "soak"
	partitions = 6
)

func newWorld(ctx context.Context, product product, seed uint64) (*world, error) {
	w := &world{product: product, seed: seed, began: time.Now(), ledger: &workload.Ledger{}}
	if err := w.start(ctx); err != nil {
		return nil, errors.Join(err, w.close(true))
	}
	w.logf("seed %d, %s, Kafka at %v, logs in %s", seed, w.server.DSN(), w.cluster.Brokers(), w.dir)
	return w, nil
}

func (w *world) start(ctx context.Context) (err error) {
	if w.dir, err = os.MkdirTemp("", "inbox-soak-"); err != nil {
		return err
	}
	directory := ""
	if w.product.name == sqlite {
		directory = w.dir
	}
	if slices.Contains([]string{"postgres", "partitions", sqlite}, w.product.name) {
		if w.disk, err = mountDisk(); err != nil {
			w.leaveOut("disk_full", err)
		} else {
			directory = w.disk.path
		}
	}
	if w.server, err = w.product.start(directory); err != nil {
		w.server = nil // not a nil pointer of the product's
		return err
	}
	workersDSN, judgesDSN := w.server.DSN(), w.server.DSN()
	if w.product.route != nil {
		if w.database, err = w.product.route(w.server.DSN()); err != nil {
			w.database = nil
			return err
		}
		if w.judging, err = workload.StartCable(w.server.DSN()); err != nil {
			return err
		}
		workersDSN, judgesDSN = w.database.DSN(), w.judging.DSN()
	}
	if w.cluster, err = servers.StartCluster(servers.ClusterOptions{Through: w.through}); err != nil {
		return err
	}
	for _, name := range []string{topic, outTopic, againTopic} {
		if err = w.cluster.CreateTopic(ctx, name, partitions, nil); err != nil {
			return err
		}
	}
	if p, found := w.server.(*patroni); found {
		w.hosts = p.cluster.DSN()
		judgesDSN += "&target_session_attrs=read-write" // the leader may have become a replica
	}
	w.judgesDSN = judgesDSN
	if w.db, err = workload.OpenSQL(judgesDSN); err != nil {
		return err
	}
	w.db.SetMaxIdleConns(10)
	if err = workload.CreateTables(ctx, w.db); err != nil {
		return err
	}
	for _, table := range []string{"effects", "runs"} {
		if _, err = w.db.ExecContext(ctx, fmt.Sprintf("CREATE INDEX %s_at ON %[1]s (at)", table)); err != nil {
			return err
		}
	}
	w.settings = workload.Quick(workersDSN)
	w.settings.Retention, w.settings.Generation = w.product.retention, workload.Original
	ib, closeInbox, err := w.inbox(w.settings) // without a Kafka channel, so it is never started
	if err != nil {
		return err
	}
	if err = errors.Join(w.migrate(ctx, ib), closeInbox()); err != nil {
		return err
	}
	w.settings.Brokers, w.settings.Topic, w.settings.Group = w.cluster.Brokers(), topic, group
	w.settings.OutTopic, w.settings.Topics = outTopic, []string{againTopic}
	if _, found := w.database.(*pgproxy.Proxy); found {
		w.pooler, err = servers.StartPgBouncer(servers.PgBouncerOptions{Server: w.database.DSN(), Settings: map[string]string{
			"default_pool_size": "30", "server_login_retry": "1", "server_connect_timeout": "3"}})
		if err != nil {
			w.pooler = nil
			w.leaveOut("pooler_killed", err)
		}
	}
	w.offsets, err = workload.WatchOffsets(ctx, w.cluster.Admin, w.cluster.Brokers(), group, topic, w.db)
	return err
}

// migrate makes the inbox's tables and prepares them for the ledger.
func (w *world) migrate(ctx context.Context, ib *inbox.Inbox) error {
	if err := ib.Migrate(ctx); err != nil {
		return err
	}
	if !w.product.partitioned {
		return workload.KeepDeleted(ctx, w.db)
	}
	db, err := workload.Open(w.server.DSN())
	if err != nil {
		return err
	}
	if err := inbox.Partition(ctx, db, ib.Tables()); err != nil {
		return err
	}
	pool, err := db.DB()
	return errors.Join(err, pool.Close(), workload.KeepDropped(ctx, w.db))
}

// leaveOut notes a disturbance that cannot happen on this machine.
func (w *world) leaveOut(name string, reason error) {
	w.leftOut = append(w.leftOut, name)
	w.logf("left out: %s: %v", name, reason)
}

// through returns a route to a broker on which responses can be cut.
func (w *world) through(broker string) (string, error) {
	proxy, err := kafkaproxy.Start(broker)
	if err != nil {
		return "", err
	}
	w.proxies = append(w.proxies, proxy)
	return proxy.Address(), nil
}

// inbox makes an inbox in this process, which accepts messages.
func (w *world) inbox(settings workload.Settings) (*inbox.Inbox, func() error, error) {
	db, err := workload.Open(settings.DSN)
	if err != nil {
		return nil, nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, nil, err
	}
	ib, err := inbox.New(workload.InboxName, db, settings.Options(workload.NewHandlers(w.db), zap.NewNop())...)
	if err != nil {
		return nil, nil, errors.Join(err, pool.Close())
	}
	return ib, pool.Close, nil
}

// close stops the servers. It removes the workers' logs if tidy is true.
func (w *world) close(tidy bool) error {
	var problems []error
	if tidy && w.dir != "" {
		problems = append(problems, os.RemoveAll(w.dir))
	}
	if w.offsets != nil {
		w.offsets.Stop()
	}
	if w.db != nil {
		problems = append(problems, w.db.Close())
	}
	for _, proxy := range w.proxies {
		proxy.Close()
	}
	if w.judging != nil {
		w.judging.Close()
	}
	if w.pooler != nil {
		problems = append(problems, w.pooler.Close())
	}
	if w.database != nil {
		w.database.Close()
	}
	if w.cluster != nil {
		problems = append(problems, w.cluster.Close())
	}
	if w.server != nil {
		problems = append(problems, w.server.Close())
	}
	if w.disk != nil {
		problems = append(problems, w.disk.close())
	}
	return errors.Join(problems...)
}

// logf prints one line with the time since the start.
func (w *world) logf(format string, args ...any) {
	w.saying.Lock()
	defer w.saying.Unlock()
	fmt.Printf("%7.1fs  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// pause waits, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
