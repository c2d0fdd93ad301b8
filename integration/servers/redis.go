package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"

	"github.com/redis/go-redis/v9"
)

// RedisOptions configures StartRedis. The zero value is right for most tests.
type RedisOptions struct {
	// Durable syncs each write to disk, so that data survives a crash. By default a server that is
	// started again is empty.
	Durable bool
	// Cluster starts a node that can join a cluster.
	Cluster bool
	// Settings are added to the settings of redis.conf, or replace them. Don't set bind, port or
	// dir.
	Settings map[string]string
}

// Redis is a Redis server.
type Redis struct {
	*server
	bus int
}

// BusPort returns the port by which the nodes of a cluster reach each other. Redis' default, 10,000 above the other,
// is in the range of outgoing connections, where another program may have it.
func (r *Redis) BusPort() int { return r.bus }

// StartRedis starts the redis-server found on the PATH and waits until it answers.
func StartRedis(options RedisOptions) (*Redis, error) {
	missing := Missing{Server: "Redis", Install: "redis-server or set " + RedisEnv}
	if err := missing.known(RedisEnv); err != nil {
		return nil, err
	}
	binary, err := lookPath("redis-server")
	if err != nil {
		return nil, missing.because(err.Error(), nil)
	}
	server, err := newServer("Redis", nil)
	if err != nil {
		return nil, err
	}
	r := &Redis{server: server}
	settings := map[string]string{"bind": loopback, "port": fmt.Sprint(r.port), "dir": r.directory.path, "save": `""`,
		"appendonly": "no"}
	if options.Durable {
		settings["appendonly"], settings["appendfsync"] = "yes", "always"
	}
	if options.Cluster {
		if r.bus, err = freePort(); err != nil {
			return nil, err
		}
		settings["cluster-enabled"], settings["cluster-port"] = "yes", fmt.Sprint(r.bus)
	}
	maps.Copy(settings, options.Settings)
	r.ready = func(ctx context.Context) error { return PingRedis(ctx, r.URL()) }
	if err := r.startConfigured(binary, configuration(settings, " ")); err != nil {
		return nil, err
	}
	return r, nil
}

// URL returns redis://host:port/0. It stays the same across restarts.
func (r *Redis) URL() string { return "redis://" + address(r.port) + "/0" }

// PingRedis returns an error unless the server at the URL answers.
func PingRedis(ctx context.Context, url string) error {
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	options.ContextTimeoutEnabled, options.MaxRetries, options.DialerRetries = true, -1, 1
	// Dial first, because the Redis client logs to stderr when a server cannot be reached, such as
	// during its start.
	reached, err := new(net.Dialer).DialContext(ctx, "tcp", options.Addr)
	if err != nil {
		return err
	}
	_ = reached.Close()
	client := redis.NewClient(options)
	return errors.Join(client.Ping(ctx).Err(), client.Close())
}
