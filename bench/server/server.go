// Package server is the PostgreSQL that everything is measured on: one for the
// whole run, durable, with the same settings for everybody.
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

// Settings are what the server runs with beside its defaults. Nothing in them
// gives up durability.
var Settings = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	"shared_buffers": "2GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min", "max_connections": "300",
}

// Server is the run's server.
type Server struct {
	dsn      string
	postgres *servers.Postgres // nil if it runs anyway
}

// Start makes a cluster and starts it.
func Start() (*Server, error) {
	p, err := servers.StartPostgres(servers.PostgresOptions{Settings: Settings})
	if err != nil {
		return nil, err
	}
	return &Server{dsn: p.DSN(), postgres: p}, nil
}

// Use takes a server that runs anyway and that others use too: for tests of
// what is measured. Its CPU is not counted, it is not made to settle, and it
// need not be durable.
func Use(dsn string) *Server { return &Server{dsn: dsn} }

// Close ends the server and removes its data, if Start started it.
func (s *Server) Close() error {
	if s.postgres == nil {
		return nil
	}
	return s.postgres.Close()
}

// Version is what the server says of itself.
func (s *Server) Version(ctx context.Context) (version string, err error) {
	err = s.do(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT current_setting('server_version')").Scan(&version)
	})
	return version, err
}

// Database is one trial's.
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

// Drop removes the database, also while connections to it are open.
func (d *Database) Drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return d.server.do(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, "DROP DATABASE "+d.name+" WITH (FORCE)")
		return err
	})
}

// Settle writes everything out, so that no trial pays for the one before.
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
