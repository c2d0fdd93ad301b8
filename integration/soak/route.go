package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv/pgproxy"
)

// database is a database server that the soak disturbs.
type database interface {
	Start() error
	Stop() error
	Kill() error
	Freeze() error
	Thaw() error
	DSN() string
	Close() error
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
}

// postgres is the name of the product that has more disturbances than the others.
const postgres = "postgres"

var products = []product{
	{postgres, "PostgreSQL",
		func(directory string) (database, error) {
			return servers.StartPostgres(servers.PostgresOptions{Directory: directory, Settings: map[string]string{
				"max_connections": "200"}})
		},
		func(dsn string) (route, error) { return pgproxy.Start(dsn) }},
	{"mariadb", "MariaDB", func(string) (database, error) { return servers.StartMariaDB(servers.MySQLOptions{}) }, startCable},
	{"mysql", "MySQL", func(string) (database, error) { return servers.StartMySQL(servers.MySQLOptions{}) }, startCable},
	{sqlite, "SQLite", openFile, nil},
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

func startCable(dsn string) (route, error) { return workload.StartCable(dsn) }
