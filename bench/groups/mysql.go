package groups

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/peers/watermill"
	"github.com/gorm-inbox/inbox/bench/trial"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

const (
	mysqlAccept   = "accept"
	mysqlPlain    = "multi-row INSERT into the same two tables"
	mysqlProcess  = "process"
	mysqlTextbook = "process, textbook inbox, one by one"
	mysqlLog      = "process, Watermill SQL, defaults"
	mysqlLog1000  = "process, Watermill SQL, batches of 1,000"
	mysqlWorker   = "process, worker processes: 1"
	mysqlWorkers  = "process, worker processes: 4"
	mysqlTx       = "transactional, inbox Tx, 8 at once"
	mysqlTxByHand = "transactional, GORM one by one, 8 at once"
)

// MariaDB measures the same work on MariaDB.
func MariaDB() trial.Group {
	return trial.Group{
		Name: "mariadb", Unit: "message", NoPostgres: true,
		About: "as in `accept`, `process`, `workers`, `transactional` and `endtoend`, on a MariaDB server of its own " +
			"that is durable (innodb_flush_log_at_trx_commit = 1, no binary log). Watermill SQL has its MySQL schema, " +
			"which keeps one offset for each group of consumers and no status of a message. River has no released " +
			"driver for MySQL",
		Shared: startMariaDB,
		Variants: []trial.Variant{
			{Name: mysqlAccept, New: onMySQL(acceptOurs(1))},
			{Name: mysqlPlain, New: onMySQL(acceptPlain)},
			{Name: "accept, " + gormBatches,
				New: onMySQL(acceptByHand(1, acceptCount, acceptQuick, acceptConnections, gormInBatches))},
			{Name: mysqlProcess, New: onMySQL(processOurs(processCount, processQuick, processOptions()...))},
			{Name: mysqlTextbook, New: onMySQL(processByHand(3_000, 1_000, textbookOf(1)))},
			{Name: mysqlLog, New: onMySQL(processWatermill(watermill.Settings{}, processCount, processQuick))},
			{Name: mysqlLog1000,
				New: onMySQL(processWatermill(watermill.Settings{Batch: 1_000}, processCount, processQuick))},
			{Name: mysqlWorker, New: onMySQL(byWorkers(1, 1))},
			{Name: mysqlWorkers, New: onMySQL(byWorkers(1, 4))},
			{Name: mysqlTx, New: onMySQL(transactionalOurs(8, 12_000, 2_500))},
			{Name: mysqlTxByHand, New: onMySQL(transactionalByHand(8, 6_000, 1_000))},
			{Name: "end to end", New: onMySQL(endToEndOurs(processOptions()))},
		},
		Lines: []trial.Line{
			trial.Ratio("mariadb_accept_vs_insert", mysqlAccept, mysqlPlain, 0.6).Times(2),
			trial.Ratio("mariadb_process_vs_textbook", mysqlProcess, mysqlTextbook, 8),
			trial.RatioOfBest("mariadb_process_vs_watermill", []string{mysqlProcess},
				[]string{mysqlLog, mysqlLog1000}, 0),
			trial.Ratio("mariadb_workers_4_vs_1_rate", mysqlWorkers, mysqlWorker, 0.8).Times(2),
			trial.Ratio("mariadb_tx_vs_gorm", mysqlTx, mysqlTxByHand, 0),
		},
	}
}

// mysqlServer is the server of all trials of the group.
type mysqlServer struct {
	dsn string
	io.Closer
}

func startMariaDB(context.Context, *trial.Lab) (io.Closer, error) {
	m, err := servers.StartMariaDB(servers.MySQLOptions{Settings: map[string]string{
		"innodb_buffer_pool_size": "2G", "innodb_log_file_size": "4G",
	}})
	if missing := (*servers.Missing)(nil); errors.As(err, &missing) {
		return nil, fmt.Errorf("%w: %w", trial.ErrLeftOut, err)
	}
	if err != nil {
		return nil, err
	}
	return &mysqlServer{m.DSN(), m}, nil
}

// onMySQL prepares a trial in a database of its own, which is dropped when the trial is closed.
func onMySQL(prepare newTrial) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		server, name, its := env.Shared.(*mysqlServer).dsn, "bench_"+strings.ToLower(rand.Text()), *env
		dsn, err := testenv.OnMySQLDatabase(server, name)
		if err != nil {
			return nil, err
		}
		if err := testenv.RunMySQL(server, "CREATE DATABASE "+name); err != nil {
			return nil, err
		}
		drop := func() { _ = testenv.RunMySQL(server, "DROP DATABASE "+name) }
		its.DSN = dsn
		t, err := prepare(ctx, &its)
		if err != nil {
			drop()
			return nil, err
		}
		end := t.Close
		t.Close = func() {
			end()
			drop()
		}
		return t, nil
	}
}

func acceptPlain(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
	ib, err := ours.Open(ctx, env.DSN, 1)
	if err != nil {
		return nil, err
	}
	n := env.Scale(acceptCount, acceptQuick)
	messages := ours.Messages(n)
	return &trial.Trial{
		Count: n,
		Run:   func(ctx context.Context) error { return ib.InsertPlain(ctx, messages, acceptBatch, acceptConnections) },
		Check: func(ctx context.Context) error { return ib.CheckStored(ctx, n, n, 0) },
		Close: ib.Close,
	}, nil
}
