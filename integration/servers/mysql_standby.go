package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"strings"
)

// semiSync are the settings of both servers of a pair. The primary waits for its standby at each commit, however long
// the standby is away, and no other session sees the commit before that. Only one of the two has the other's part.
var semiSync = map[string]string{
	"log_bin": "log", "binlog_format": "ROW", "sync_binlog": "1", "gtid_strict_mode": "ON",
	"rpl_semi_sync_master_wait_point": "AFTER_SYNC", "rpl_semi_sync_master_wait_no_slave": "ON",
	"rpl_semi_sync_master_timeout": "4294967295", // milliseconds, which are 50 days
}

// StartStandby starts a read-only copy of a MariaDB that follows it by its binary log, and makes m wait for it at each
// commit. Once StartStandby returns, no commit is answered before the standby has it in its relay log. Connections to m
// are lost. Freeze the standby to make it unresponsive. Close it like m.
func (m *MySQL) StartStandby() (*MySQL, error) {
	standby, err := newMySQL(m.programs)
	if err != nil {
		return nil, err
	}
	if err = m.copyTo(standby); err == nil {
		err = m.follow(standby)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("standby: %w", err), standby.Close())
	}
	return standby, nil
}

// copyTo copies the data while the server is stopped. Both servers begin their binary logs after that.
func (m *MySQL) copyTo(standby *MySQL) error {
	if err := m.Stop(); err != nil {
		return err
	}
	delete(m.settings, "skip_log_bin")
	delete(m.settings, "init_file") // the data has its users, and a start must not wait for the standby
	maps.Copy(m.settings, semiSync)
	standby.settings = maps.Clone(m.settings)
	m.settings["server_id"], m.settings["rpl_semi_sync_master_enabled"] = "1", "ON"
	standby.settings["server_id"], standby.settings["rpl_semi_sync_slave_enabled"] = "2", "ON"
	standby.settings["read_only"] = "ON"
	copies := exec.Command("cp", "-Rp", m.data(), standby.data())
	return errors.Join(m.configure(), standby.configure(), run(startTimeout, copies, m.account, standby.log()), m.Start(),
		standby.Start())
}

func (m *MySQL) follow(standby *MySQL) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err := standby.execute(ctx, fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '%s', MASTER_PORT = %d, MASTER_USER = 'root', "+
		"MASTER_USE_GTID = slave_pos", loopback, m.port), "START SLAVE")
	if err != nil {
		return err
	}
	return poll(ctx, func(ctx context.Context) error {
		return onMySQL(m.DSN(), func(db *sql.DB) error {
			return db.QueryRowContext(ctx, `SELECT 1 FROM information_schema.global_status
				WHERE variable_name = 'Rpl_semi_sync_master_clients' AND variable_value = '1'`).Scan(new(int))
		})
	})
}

// Promote makes a standby an independent server, as after the loss of its primary. It first applies all that the
// standby has received, which is every commit that the primary has answered.
func (m *MySQL) Promote() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err := m.execute(ctx, "STOP SLAVE IO_THREAD")
	if err == nil {
		err = m.applyReceived(ctx)
	}
	if err == nil {
		err = m.execute(ctx, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF")
	}
	m.settings["read_only"] = "OFF"
	return wrap(m.name+": promote", errors.Join(err, m.configure()))
}

func (m *MySQL) applyReceived(ctx context.Context) error {
	return onMySQL(m.DSN(), func(db *sql.DB) error {
		status, err := row(ctx, db, "SHOW SLAVE STATUS")
		if err != nil {
			return err
		}
		var ended sql.NullInt64
		const wait = "SELECT MASTER_GTID_WAIT(?, ?)" // 0 once it is applied, -1 after the time
		err = db.QueryRowContext(ctx, wait, status["Gtid_IO_Pos"], startTimeout.Seconds()).Scan(&ended)
		if err == nil && ended.Int64 != 0 {
			err = fmt.Errorf("not applied in time: %v", status)
		}
		return err
	})
}

func (m *MySQL) execute(ctx context.Context, statements ...string) error {
	return onMySQL(m.DSN(), func(db *sql.DB) error {
		for _, statement := range statements {
			if _, err := db.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
}

// row returns the columns of a query's first row.
func row(ctx context.Context, db *sql.DB, query string) (map[string]string, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil || !rows.Next() {
		return nil, errors.Join(err, rows.Err(), fmt.Errorf("%s: no row", query))
	}
	values := make([]sql.NullString, len(names))
	pointers := make([]any, len(names))
	for i := range values {
		pointers[i] = &values[i]
	}
	err = rows.Scan(pointers...)
	all := make(map[string]string, len(names))
	for i, name := range names {
		all[name] = strings.TrimSpace(values[i].String)
	}
	return all, err
}
