package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// RedisOptions configures StartRedis. The zero value is right for most tests.
type RedisOptions struct {
	// Durable syncs each write to disk, so that data survives a crash. By default a server that is
	// started again is empty.
	Durable bool
	// Settings are added to the settings of redis.conf, or replace them. Don't set bind, port or
	// dir.
	Settings map[string]string
}

// Redis is a Redis server.
type Redis struct {
	binary    string
	account   *account
	options   RedisOptions
	directory *directory
	port      int

	mu      sync.Mutex
	process *process // nil when not running
	frozen  bool
	closed  bool
}

// StartRedis starts the redis-server found on the PATH and waits until it answers. For root, it
// runs as the account "postgres", or else "nobody". If Redis is missing, the error is one line that
// says where it was looked for and how to install it.
func StartRedis(options RedisOptions) (*Redis, error) {
	missing := Missing{Server: "Redis", Install: "redis-server or set " + RedisEnv}
	if err := knownMissing(RedisEnv, missing); err != nil {
		return nil, err
	}
	binary, err := lookPath("redis-server")
	if err != nil {
		missing.Why = err.Error()
		return nil, &missing
	}
	account, err := unprivilegedAccount()
	if err != nil {
		return nil, fmt.Errorf("Redis: %w", err)
	}
	directory, err := newDirectory("redis", account)
	if err != nil {
		return nil, fmt.Errorf("Redis: %w", err)
	}
	r := &Redis{binary: binary, account: account, options: options, directory: directory}
	for range 3 {
		if r.port, err = freePort(); err != nil {
			err = fmt.Errorf("Redis: %w", err)
			break
		}
		if err = r.Start(); !portTaken(err) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
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

// PID returns the server's process ID, or 0 while it does not run.
func (r *Redis) PID() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil || !r.process.running() {
		return 0
	}
	return r.process.pid()
}

// Start starts the server again on the same port, with its data if it is Durable, and waits until
// it answers. It does nothing if the server runs.
func (r *Redis) Start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errors.New("Redis: start: closed")
	}
	if r.process != nil && r.process.running() {
		return nil
	}
	if err := os.WriteFile(r.directory.join("redis.conf"), []byte(r.settings()), 0o644); err != nil {
		return fmt.Errorf("Redis: %w", err)
	}
	command := exec.Command(r.binary, r.directory.join("redis.conf"))
	command.Dir = r.directory.path
	process, err := startProcess(command, r.account, r.log())
	if err != nil {
		return fmt.Errorf("Redis: %w", err)
	}
	r.process = process
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := process.waitUntil(ctx, func(ctx context.Context) error { return PingRedis(ctx, r.URL()) }); err != nil {
		err = fmt.Errorf("Redis: start: %w; its log: %s", err, logTail(r.log()))
		return errors.Join(err, r.kill())
	}
	return nil
}

func (r *Redis) settings() string {
	settings := map[string]string{
		"bind":       loopback,
		"port":       fmt.Sprint(r.port),
		"dir":        r.directory.path,
		"save":       `""`,
		"appendonly": "no",
		"daemonize":  "no",
	}
	if r.options.Durable {
		settings["appendonly"], settings["appendfsync"] = "yes", "always"
	}
	maps.Copy(settings, r.options.Settings)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s %s\n", name, settings[name])
	}
	return text.String()
}

// Stop shuts the server down gracefully (SIGTERM). A frozen server is thawed first.
func (r *Redis) Stop() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil {
		return nil
	}
	r.thaw()
	ended := r.process.end(syscall.SIGTERM, stopTimeout)
	r.process = nil
	return wrap("Redis: stop", ended)
}

// Kill kills the server with SIGKILL, like a crash.
func (r *Redis) Kill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return wrap("Redis: kill", r.kill())
}

// Freeze stops the server with SIGSTOP. Connections stay open and get no response, as in a network
// partition.
func (r *Redis) Freeze() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozen {
		return nil
	}
	if r.process == nil || !r.process.running() {
		return errors.New("Redis: freeze: not running")
	}
	r.process.signal(syscall.SIGSTOP)
	pid := r.process.pid()
	if err := await("server process stops", stopTimeout, func() bool { return stopped(pid) || gone(pid) }); err != nil {
		return wrap("Redis: freeze", err)
	}
	r.frozen = true
	return nil
}

// Thaw continues a frozen server.
func (r *Redis) Thaw() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.thaw()
	return nil
}

// Close kills the server and removes its data.
func (r *Redis) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	return wrap("Redis: close", errors.Join(r.kill(), r.directory.remove()))
}

func (r *Redis) thaw() {
	if r.frozen {
		r.frozen = false
		r.process.signal(syscall.SIGCONT)
	}
}

func (r *Redis) kill() error {
	if r.process == nil {
		return nil
	}
	r.process.signal(syscall.SIGKILL)
	ended := r.process.waitEnd()
	r.process, r.frozen = nil, false
	return ended
}

func (r *Redis) log() string { return r.directory.join("server.log") }
