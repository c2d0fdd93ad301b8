package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"

	"github.com/go-sql-driver/mysql"
)

// MySQLOptions configures StartMariaDB and StartMySQL. The zero value is right for most tests.
type MySQLOptions struct {
	// Settings are added to the server's own settings, or replace them: durable commits, no binary log,
	// max_connections 300. Don't set bind_address, port, datadir or socket.
	Settings map[string]string
}

// MySQL is a MySQL or MariaDB server with data of its own. After Kill, the next Start recovers from
// the redo log.
type MySQL struct {
	*server
	programs mysqlPrograms
	settings map[string]string
}

// mysqlPrograms are the programs of one product.
type mysqlPrograms struct {
	title  string
	server func(arguments ...string) *exec.Cmd
	// initialize returns the command that makes an empty data directory.
	initialize func(data string) *exec.Cmd
	settings   map[string]string
}

// StartMariaDB makes new data and waits until the server answers. It takes the programs from the PATH or a directory
// sbin beside it. Debian's mariadb-server-core has them, and mariadb-client-core has my_print_defaults, which the
// installer runs.
func StartMariaDB(options MySQLOptions) (*MySQL, error) {
	missing := Missing{Server: "MariaDB", Install: "mariadb-server-core and mariadb-client-core or set " + MariaDBEnv}
	if err := missing.known(MariaDBEnv); err != nil {
		return nil, err
	}
	binary, err := lookPath("mariadbd")
	installer := ""
	if err == nil {
		installer, err = lookPath("mariadb-install-db")
	}
	if err == nil {
		_, err = lookPath("my_print_defaults")
	}
	if err != nil {
		return nil, missing.because(err.Error(), nil)
	}
	return startMySQL(mysqlPrograms{title: "MariaDB", server: mysqld{arguments: []string{binary}}.run,
		initialize: func(data string) *exec.Cmd {
			return exec.Command(installer, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal",
				"--skip-test-db", "--skip-name-resolve", "--innodb-log-file-size=8M")
		}}, options)
}

// StartMySQL is StartMariaDB for MySQL itself: a mysqld on the PATH that is none of MariaDB, or else that of Debian's
// development release (9.x), or else that of Maven Central (8.0.15).
func StartMySQL(options MySQLOptions) (*MySQL, error) {
	program, err := findMySQL()
	if err != nil {
		return nil, err
	}
	settings := map[string]string{"mysqlx": "OFF", "secure_file_priv": "NULL", "performance_schema": "OFF"}
	maps.Copy(settings, program.settings)
	return startMySQL(mysqlPrograms{title: "MySQL", server: program.run, settings: settings,
		initialize: func(data string) *exec.Cmd {
			arguments := []string{"--no-defaults", "--initialize-insecure", "--datadir=" + data, "--secure-file-priv=NULL"}
			for name, value := range program.settings {
				arguments = append(arguments, "--"+name+"="+value)
			}
			return program.run(arguments...)
		}}, options)
}

// startMySQL sets a server up whose user root needs no password, and starts it.
func startMySQL(programs mysqlPrograms, options MySQLOptions) (*MySQL, error) {
	m, err := newMySQL(programs)
	if err != nil {
		return nil, err
	}
	maps.Copy(m.settings, options.Settings)
	if err = m.initialize(); err == nil {
		err = m.Start()
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// newMySQL returns a server without data that does not run.
func newMySQL(programs mysqlPrograms) (*MySQL, error) {
	account, err := unprivileged()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", programs.title, err)
	}
	server, err := newServer(programs.title, account)
	if err != nil {
		return nil, err
	}
	m := &MySQL{server: server, programs: programs, settings: map[string]string{
		"skip_name_resolve": "ON", "skip_log_bin": "ON", "max_connections": "300", "max_allowed_packet": "64M",
		"innodb_flush_log_at_trx_commit": "1",
		// Small, because a machine may run several servers beside the tests. Versions differ in the name of one.
		"innodb_buffer_pool_size": "128M", "loose_innodb_log_file_size": "48M", "loose_innodb_redo_log_capacity": "96M",
	}}
	maps.Copy(m.settings, programs.settings)
	m.ready = func(ctx context.Context) error { return PingMySQL(ctx, m.DSN()) }
	m.command = func() *exec.Cmd { return m.programs.server("--defaults-file=" + m.directory.join("server.conf")) }
	return m, nil
}

// mysqlUsers has the server make the user that tests connect as, and their database, whenever it starts.
const mysqlUsers = `CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS test;
`

// initialize makes the data of a new server.
func (m *MySQL) initialize() error {
	m.settings["init_file"] = m.directory.join("users.sql")
	if err := errors.Join(os.WriteFile(m.settings["init_file"], []byte(mysqlUsers), 0o644), m.configure()); err != nil {
		return err
	}
	initialize := m.programs.initialize(m.data())
	initialize.Env = append(os.Environ(), "TMPDIR="+m.directory.path)
	return wrap(m.name+": make data", run(startTimeout, initialize, m.account, m.log()))
}

// configure writes the settings for the next start.
func (m *MySQL) configure() error {
	settings := maps.Clone(m.settings)
	maps.Copy(settings, map[string]string{
		"bind_address": loopback, "port": fmt.Sprint(m.port), "datadir": m.data(), "socket": m.directory.join("socket"),
		"pid_file": m.directory.join("pid"), "tmpdir": m.directory.path,
	})
	content := append([]byte("[mysqld]\n"), configuration(settings, " = ")...)
	return os.WriteFile(m.directory.join("server.conf"), content, 0o644)
}

func (m *MySQL) data() string { return m.directory.join("data") }

// DSN returns the DSN of the database "test", as gorm.io/driver/mysql takes it, for a user who may do everything. It
// stays the same across restarts.
func (m *MySQL) DSN() string {
	return fmt.Sprintf("root@tcp(%s)/test?parseTime=true&loc=UTC&interpolateParams=true", address(m.port))
}

// PingMySQL returns an error unless the server at dsn answers a query.
func PingMySQL(ctx context.Context, dsn string) error {
	return onMySQL(dsn, func(db *sql.DB) error { return db.QueryRowContext(ctx, "SELECT 1").Scan(new(int)) })
}

// onMySQL connects to the server at dsn.
func onMySQL(dsn string, do func(db *sql.DB) error) (err error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	config.Logger = &mysql.NopLogger{} // the driver would log each attempt during the server's start
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer func() { err = errors.Join(err, db.Close()) }()
	return do(db)
}
