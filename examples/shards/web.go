package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/ops"
)

// Dashboards serves the dashboards of all shards, each under its name. They read the databases, so the process that
// serves them runs no inbox.
func Dashboards(databases map[string]*demo.Database) (http.Handler, error) {
	all := map[string]*dashboard.Dashboard{}
	for shard, database := range databases {
		o, err := ops.New(database.DB)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", shard, err)
		}
		all[shard], err = dashboard.New(o, func(o *dashboard.Options) {
			o.Insecure = true // on this machine's loopback alone; a service sets an Authorizer
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", shard, err)
		}
	}
	return dashboard.Several(all)
}

// ServeDashboards serves them until the environment is closed.
func (c *Cluster) ServeDashboards(ctx context.Context) error {
	dashboards, err := Dashboards(c.databases)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/inbox/", http.StripPrefix("/inbox", dashboards))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		IdleTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	c.env.Cleanup(func(context.Context, bool) error {
		err := server.Close()
		if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
			err = errors.Join(err, ended)
		}
		return err
	})
	c.site = fmt.Sprintf("http://%s/inbox/", listener.Addr())
	return nil
}

// AnsweringDashboards counts those of the shards whose dashboard finds a deposit that the shard has booked.
func (c *Cluster) AnsweringDashboards(ctx context.Context, shards []string) (n int) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client := &http.Client{}
	defer client.CloseIdleConnections()
	for _, shard := range shards {
		var booked Entry
		if err := c.databases[shard].DB.WithContext(ctx).Take(&booked).Error; err != nil {
			continue
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.site+shard+"/messages?id="+booked.DepositID, nil)
		if err != nil {
			continue
		}
		response, err := client.Do(request)
		if err != nil {
			continue
		}
		page, err := io.ReadAll(response.Body)
		if response.Body.Close(); err == nil && strings.Contains(string(page), "<strong>1</strong> match") {
			n++
		}
	}
	return n
}
