package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// database is what the soak disturbs.
type database interface {
	DSN() string
	Close() error
}

// server is a database that is one server.
type server interface {
	database
	Start() error
	Stop() error
	Kill() error
	Freeze() error
	Thaw() error
}

// route is the workers' route to the database, on which answers come late or not at all.
type route interface {
	DSN() string
	Delay(time.Duration)
	LoseAnswers(seed uint64)
	AnswersLost() int
	Close()
}

// product is a database that can be soaked.
type product struct {
	name, title string
	start       func(directory string) (database, error) // where its data is, if not empty
	route       func(dsn string) (route, error)          // nil if there is no server
	cells       func(*world) []cell                      // the disturbances that not all products have
	retention   time.Duration
	partitioned bool // whether the tables are in partitions, of which each takes messages for an eighth of the retention
}

// retention is longer than a producer or an accept may repeat itself across an outage. Such duplicates run again once
// the first has been deleted.
const retention = 40 * time.Second

var products = []product{
	{"postgres", "PostgreSQL", startPostgres, startProxy, (*world).postgresCells, retention, false},
	{"partitions", "PostgreSQL with partitions", startPostgres, startProxy, (*world).postgresCells, retention, true},
	{"patroni", "PostgreSQL under Patroni", startPatroni, startProxy, (*world).patroniCells, 2 * retention, false},
	{"mariadb", "MariaDB", func(string) (database, error) { return servers.StartMariaDB(servers.MySQLOptions{}) }, startCable,
		(*world).serverCells, retention, false},
	{"mysql", "MySQL", func(string) (database, error) { return servers.StartMySQL(servers.MySQLOptions{}) }, startCable,
		(*world).serverCells, retention, false},
	{sqlite, "SQLite", openFile, nil, (*world).fileCells, retention, false},
}

func startPostgres(directory string) (database, error) {
	return servers.StartPostgres(servers.PostgresOptions{Directory: directory, Settings: map[string]string{"max_connections": "200"}})
}

// productNamed returns a product, or an error that lists the names.
func productNamed(name string) (product, error) {
	var names []string
	for _, p := range products {
		if p.name == name {
			return p, nil
		}
		names = append(names, p.name)
	}
	return product{}, fmt.Errorf("-database = %q: must be %s", name, strings.Join(names, ", "))
}

func startProxy(dsn string) (route, error) { return pgproxy.Start(dsn) }

func startCable(dsn string) (route, error) { return workload.StartCable(dsn) }
