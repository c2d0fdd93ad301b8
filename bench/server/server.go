// Package server is the PostgreSQL server of a benchmark run. One server runs for the whole run,
// durable and with the same settings for all variants.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gorm-inbox/inbox/integration/servers"
)

// Settings are the server's settings that differ from PostgreSQL's defaults. None of them weakens
// durability.
var Settings = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	"shared_buffers": "2GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min", "max_connections": "300",
}

// Server is the run's PostgreSQL server.
type Server struct {
	dsn      string
	postgres *servers.Postgres // nil for an external server
}

// Start creates a cluster and starts it.
func Start() (*Server, error) {
	p, err := servers.StartPostgres(servers.PostgresOptions{Settings: Settings})
	if err != nil {
		return nil, err
	}
	return &Server{dsn: p.DSN(), postgres: p}, nil
}

// Use takes an external server that others may use, too. It is for tests of the benchmarks: the
// server's CPU is not counted, Settle does nothing, and the server need not be durable.
func Use(dsn string) *Server { return &Server{dsn: dsn} }

// Close ends the server and removes its data, if Start started it.
func (s *Server) Close() error {
	if s.postgres == nil {
		return nil
	}
	return s.postgres.Close()
}

// Version returns the server's version.
func (s *Server) Version(ctx context.Context) (version string, err error) {
	err = s.do(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT current_setting('server_version')").Scan(&version)
	})
	return version, err
}

// Database is the database of one trial.
type Database struct {
	DSN    string
	server *Server
	name   string
}

// NewDatabase makes an empty database.
func (s *Server) NewDatabase(ctx context.Context) (*Database, error) {
	name := "bench_" + strings.ToLower(rand.Text())
	err := s.do(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make a database: %w", err)
	}
	dsn, err := url.Parse(s.dsn)
	if err != nil {
		return nil, err
	}
	dsn.Path = "/" + name
	return &Database{DSN: dsn.String(), server: s, name: name}, nil
}

// Drop removes the database, even while connections to it are open.
func (d *Database) Drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return d.server.do(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, "DROP DATABASE "+d.name+" WITH (FORCE)")
		return err
	})
}

// Settle writes all buffers to disk, so that no trial pays for the previous one.
func (s *Server) Settle(ctx context.Context) error {
	if s.postgres == nil {
		return nil
	}
	return s.do(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, "CHECKPOINT")
		return err
	})
}

// CheckDurable fails unless commits are durable.
func (s *Server) CheckDurable(ctx context.Context) error {
	if s.postgres == nil {
		return nil
	}
	return s.do(ctx, func(c *pgx.Conn) error {
		for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
			var value string
			if err := c.QueryRow(ctx, "SELECT current_setting($1)", setting).Scan(&value); err != nil {
				return err
			}
			if value != "on" {
				return fmt.Errorf("the server's %s is %s: nothing measured on it counts", setting, value)
			}
		}
		return nil
	})
}

func (s *Server) do(ctx context.Context, work func(*pgx.Conn) error) (err error) {
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	return work(conn)
}
