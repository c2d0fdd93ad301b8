package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// VitessEnv names the environment variable with the directory of Vitess's programs, which `make vitess` builds. The
// account of the servers must be able to read it.
const VitessEnv = "INBOX_TEST_VITESS"

// vitessKeyspaces is how many unsharded keyspaces each Vitess lends to tests, besides that of DSN.
const vitessKeyspaces = 4

// Vitess is an unsharded Vitess in one process, vtcombo, in front of a MySQL of its own. Its tablets have their default
// limits: 20 transactions at once, 30 s for each, and 10,000 rows for a statement.
type Vitess struct {
	*server
	// MySQL is the server that keeps the data.
	MySQL     *MySQL
	mysqlPort int
	free      chan string // the names of keyspaces that no test has
}

// StartVitess starts MySQL, and Vitess in front of it, and waits until a statement reaches a tablet.
func StartVitess() (*Vitess, error) {
	program, err := vitessProgram("vtcombo")
	if err != nil {
		return nil, err
	}
	// A commit survives the death of the server, but no power cut.
	mysql, err := StartMySQL(MySQLOptions{Settings: map[string]string{
		"max_connections": "2000", "innodb_flush_log_at_trx_commit": "2", "innodb_doublewrite": "0"}})
	if err != nil {
		return nil, err
	}
	v, err := newVitess(program, mysql)
	if err != nil {
		return nil, errors.Join(err, mysql.Close())
	}
	if err = v.Start(); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// newVitess returns a Vitess that does not run. Its keyspaces have one tablet each, the primary.
func newVitess(program string, mysql *MySQL) (*Vitess, error) {
	mysqlPort, err := freePort()
	if err != nil {
		return nil, err
	}
	grpcPort, err := freePort()
	if err != nil {
		return nil, err
	}
	server, err := newServer("Vitess", mysql.account)
	if err != nil {
		return nil, err
	}
	v := &Vitess{server: server, MySQL: mysql, mysqlPort: mysqlPort, free: make(chan string, vitessKeyspaces)}
	topology, databases := `cells: "test"`, []string(nil)
	add := func(keyspace string, shards ...string) {
		topology += fmt.Sprintf(` keyspaces: {name: %q replica_count: 1 rdonly_count: -1`, keyspace)
		for _, shard := range shards {
			topology += fmt.Sprintf(` shards: {name: %q}`, shard)
			databases = append(databases, fmt.Sprintf("CREATE DATABASE `vt_%s_%s`", keyspace, shard))
		}
		topology += "}"
	}
	add("test", "0")
	add("sharded", "-80", "80-")
	for i := range vitessKeyspaces {
		name := fmt.Sprintf("keyspace%d", i+1)
		add(name, "0")
		v.free <- name
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := mysql.execute(ctx, databases...); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	arguments := append([]string{"--proto-topo", topology, "--port", fmt.Sprint(server.port), "--bind-address", loopback,
		"--grpc-port", fmt.Sprint(grpcPort), "--grpc-bind-address", loopback, "--tablet-types-to-wait", "PRIMARY"},
		frontArguments(mysqlPort)...)
	arguments = append(arguments, loginArguments(mysql)...)
	v.command = func() *exec.Cmd { return vitessCommand(server.directory, program, arguments...) }
	v.ready = func(ctx context.Context) error { return pingTablet(ctx, v.DSN()) }
	return v, nil
}

// Keyspace lends an empty keyspace. It returns its DSN, and a function that empties it and gives it back. It fails if
// all are in use.
func (v *Vitess) Keyspace() (dsn string, end func() error, err error) {
	var name string
	select {
	case name = <-v.free:
	default:
		return "", nil, fmt.Errorf("%s: all %d keyspaces are in use", v.name, cap(v.free))
	}
	return v.dsn(name), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		// The tablet's connections name their database, so they go on in the new one.
		database := BehindVitess(name)
		err := v.MySQL.execute(ctx, "DROP DATABASE "+database, "CREATE DATABASE "+database)
		v.free <- name
		return wrap("empty keyspace "+name, err)
	}, nil
}

// BehindVitess returns the name that the data of an unsharded keyspace has in MySQL.
func BehindVitess(keyspace string) string { return "vt_" + keyspace + "_0" }

// DSN returns the DSN of a keyspace that stays the same.
func (v *Vitess) DSN() string { return v.dsn("test") }

// Sharded returns the DSN of a keyspace with two shards, in which no inbox may start.
func (v *Vitess) Sharded() string { return v.dsn("sharded") }

func (v *Vitess) dsn(keyspace string) string { return vitessDSN(v.mysqlPort, keyspace) }

func vitessDSN(port int, keyspace string) string {
	return fmt.Sprintf("root@tcp(%s)/%s?parseTime=true&loc=UTC&interpolateParams=true", address(port), keyspace)
}

// Close kills Vitess and its MySQL and removes their data.
func (v *Vitess) Close() error { return errors.Join(v.server.Close(), v.MySQL.Close()) }

// frontArguments have a program listen for clients of MySQL, whom it lets in without a password.
func frontArguments(port int) []string {
	return []string{"--mysql-server-port", fmt.Sprint(port), "--mysql-server-bind-address", loopback,
		"--mysql-auth-server-impl", "none"}
}

// loginArguments have a tablet log in to MySQL, in each of its roles.
func loginArguments(mysql *MySQL) []string {
	arguments := []string{"--db-host", loopback, "--db-port", fmt.Sprint(mysql.port)}
	for _, role := range []string{"app", "appdebug", "allprivs", "dba", "filtered", "repl"} {
		arguments = append(arguments, "--db-"+role+"-user", "root", "--db-"+role+"-use-ssl=false")
	}
	return arguments
}

func vitessCommand(directory *directory, program string, arguments ...string) *exec.Cmd {
	command := exec.Command(program, arguments...)
	command.Env = append(os.Environ(), "VTDATAROOT="+directory.path, "TMPDIR="+directory.path)
	return command
}

// vitessProgram returns the path of one of Vitess's programs.
func vitessProgram(name string) (string, error) {
	missing := Missing{Server: "Vitess", Install: "it with make vitess"}
	home := os.Getenv(VitessEnv)
	if home == "" {
		return "", missing.because(VitessEnv+" is not set", nil)
	}
	path, err := exec.LookPath(filepath.Join(home, name))
	if err != nil {
		return "", missing.because("no "+name+" in "+home, err)
	}
	return path, nil
}

// pingTablet returns an error unless a statement that only a tablet can answer is answered.
func pingTablet(ctx context.Context, dsn string) error {
	const query = "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE()"
	return onMySQL(dsn, func(db *sql.DB) error { return db.QueryRowContext(ctx, query).Scan(new(int)) })
}
