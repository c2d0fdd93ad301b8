package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Patroni is a cluster of PostgreSQL servers whose commits wait for a replica. Patroni chooses which of
// them is the leader, and keeps that in an etcd of the cluster's own. Each member has its own way to
// etcd.
type Patroni struct {
	members []*PatroniMember
	etcd    *server
}

// PatroniMember is a PostgreSQL server with the Patroni that controls it.
type PatroniMember struct {
	name     string
	postgres *Postgres // its port and programs; Patroni starts and stops it
	patroni  *server   // its port is the one of Patroni's REST API
	gateway  *server   // the way to etcd

	mu     sync.Mutex
	frozen []*family // PostgreSQL's processes that Freeze stopped
	guard  *guard    // kills PostgreSQL if this process dies; nil after close
	away   bool      // killed or frozen
}

// clusterTimeout limits a change of the whole cluster, such as a new leader. On a busy machine Patroni
// takes minutes for that.
const clusterTimeout = 3 * time.Minute

// StartPatroni starts a new cluster, and waits until each replica follows the leader. It takes
// patroni and etcd from the PATH.
func StartPatroni(members int) (*Patroni, error) {
	programs, err := findPatroni()
	if err != nil {
		return nil, err
	}
	c := &Patroni{}
	if err := c.start(programs, members); err != nil {
		return nil, errors.Join(fmt.Errorf("Patroni: %w", err), c.Close())
	}
	return c, nil
}

// patroniPrograms are the paths of programs, and the directory of PostgreSQL's.
type patroniPrograms struct{ patroni, etcd, postgres string }

func findPatroni() (p patroniPrograms, err error) {
	missing := Missing{Server: "Patroni", Install: "patroni, etcd-server and postgresql"}
	if p.patroni, err = lookPath("patroni"); err == nil {
		p.etcd, err = lookPath("etcd")
	}
	if err != nil {
		return p, missing.because(err.Error(), nil)
	}
	if p.postgres, err = usualPostgres.find(); err != nil {
		return p, err
	}
	for _, name := range []string{"pg_basebackup", "pg_controldata", "pg_ctl", "pg_isready", "pg_rewind"} {
		if _, err := exec.LookPath(filepath.Join(p.postgres, name)); err != nil {
			return p, missing.because("no "+name+" in "+p.postgres, nil)
		}
	}
	return p, nil
}

func (c *Patroni) start(programs patroniPrograms, members int) error {
	if err := c.startEtcd(programs.etcd); err != nil {
		return err
	}
	for i := range members {
		m := &PatroniMember{name: fmt.Sprintf("member%d", i+1)}
		c.members = append(c.members, m) // Close closes what prepare has made
		if err := c.prepare(m, programs); err != nil {
			return err
		}
	}
	failed := make([]error, members) // one of them makes the cluster, which the others copy
	var starting sync.WaitGroup
	for i, m := range c.members {
		starting.Go(func() { failed[i] = m.Start() })
	}
	starting.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	if err := c.awaitFirstLeader(); err != nil {
		return err
	}
	return c.AwaitReplicas()
}

// awaitFirstLeader waits until a member has made the cluster. If none does, it lets all try again: on a busy machine,
// the one that took the lock may have missed etcd's response, and then waits for itself.
func (c *Patroni) awaitFirstLeader() error {
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	since := time.Now()
	return c.explain("make a cluster", poll(ctx, func(ctx context.Context) error {
		_, err := c.Leader()
		if err == nil || time.Since(since) < clusterTimeout/6 {
			return err
		}
		since = time.Now()
		for _, m := range c.members {
			if pids, failed := processesOf(m.postgres.data()); failed != nil || len(pids) > 0 {
				return errors.Join(err, failed)
			}
		}
		return errors.Join(err, c.deleteKey(ctx, "initialize"))
	}))
}

func (c *Patroni) startEtcd(program string) (err error) {
	if c.etcd, err = newServer("etcd", nil); err != nil {
		return err
	}
	peers, err := freePort()
	if err != nil {
		return err
	}
	peerURL := "http://" + address(peers)
	c.etcd.command = func() *exec.Cmd {
		command := exec.Command(program, "--data-dir", c.etcd.directory.join("data"), "--listen-client-urls", c.etcdURL(),
			"--advertise-client-urls", c.etcdURL(), "--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL,
			"--initial-cluster", "default="+peerURL)
		// A busy disk would look like a loss of etcd. Versions that do not know the variable ignore it.
		command.Env = append(os.Environ(), "ETCD_UNSAFE_NO_FSYNC=true")
		return command
	}
	c.etcd.ready = func(ctx context.Context) error { return get(ctx, c.etcdURL()+"/health") }
	return c.etcd.Start()
}

func (c *Patroni) etcdURL() string { return "http://" + address(c.etcd.port) }

// prepare starts what a member needs before its Patroni.
func (c *Patroni) prepare(m *PatroniMember, programs patroniPrograms) (err error) {
	if m.postgres, err = newPostgres(programs.postgres, "", nil); err != nil {
		return err
	}
	if m.gateway, err = newServer("etcd-gateway", nil); err != nil {
		return err
	}
	m.gateway.command = func() *exec.Cmd {
		return exec.Command(programs.etcd, "gateway", "start", "--listen-addr", address(m.gateway.port),
			"--endpoints", address(c.etcd.port))
	}
	m.gateway.ready = func(ctx context.Context) error { return get(ctx, "http://"+address(m.gateway.port)+"/health") }
	if err = m.gateway.Start(); err != nil {
		return err
	}
	if m.patroni, err = newServer("Patroni", m.postgres.account); err != nil {
		return err
	}
	configuration, err := json.Marshal(m.configuration())
	if err != nil {
		return err
	}
	file := m.patroni.directory.join("patroni.yml") // JSON is YAML
	if err = os.WriteFile(file, configuration, 0o644); err != nil {
		return err
	}
	m.patroni.command = func() *exec.Cmd {
		command := m.postgres.program("patroni", file)
		command.Path = programs.patroni
		return command
	}
	m.patroni.ready = func(ctx context.Context) error { return get(ctx, m.api("/patroni")) }
	// Patroni detaches PostgreSQL, which would outlive both. A file that a killed one has left may name
	// another program's process.
	m.guard, err = startGuardThat(
		`pid=$(head -n 1 "$1") && grep -qF -- "${1%/*}" "/proc/$pid/cmdline" && kill -KILL "$pid"`,
		filepath.Join(m.postgres.data(), "postmaster.pid"))
	return err
}

type settings map[string]any

func (m *PatroniMember) configuration() settings {
	user := settings{"username": "postgres"}
	return settings{
		"scope": "inbox", "name": m.name,
		"restapi": settings{"listen": address(m.patroni.port), "connect_address": address(m.patroni.port)},
		// Otherwise Patroni would ask etcd for its address, and leave the gateway out.
		"etcd3": settings{"hosts": []string{address(m.gateway.port)}, "use_proxies": true},
		"bootstrap": settings{
			"dcs": settings{
				// The smallest ttl that newer versions accept.
				"ttl": 20, "loop_wait": 1, "retry_timeout": 5,
				"synchronous_mode": true,
				// A leader whose PostgreSQL has died is replaced at once.
				"master_start_timeout": 0,
				// What a synchronous replica lacks was not acknowledged, and prevents no failover.
				"maximum_lag_on_failover": 1 << 30,
				"postgresql": settings{
					"use_pg_rewind": true,
					// A killed PostgreSQL leaves its shared memory in its data directory. What it has written stays in
					// the kernel, and a busy disk would look like a lost leader.
					"parameters": settings{"max_connections": 300, "dynamic_shared_memory_type": "mmap", "fsync": "off"},
				},
			},
			"initdb": []any{settings{"encoding": "UTF8"}, settings{"locale": "C"}, settings{"auth": "trust"}, "no-sync"},
		},
		"postgresql": settings{
			"listen": address(m.postgres.port), "connect_address": address(m.postgres.port),
			"data_dir": m.postgres.data(), "bin_dir": m.postgres.binaries, "pgpass": m.patroni.directory.join("pgpass"),
			"authentication": settings{"superuser": user, "replication": user, "rewind": user},
			"parameters":     settings{"unix_socket_directories": m.postgres.directory.path},
			"basebackup":     []any{settings{"checkpoint": "fast"}, "no-sync"},
			"pg_hba": []string{"local all all trust", "host all all 127.0.0.1/32 trust",
				"host replication all 127.0.0.1/32 trust"},
		},
	}
}

// DSN returns the URL of the database "postgres" with all members. A client connects to the one that
// takes writes, and tries another one after two seconds without a response.
func (c *Patroni) DSN() string {
	hosts := make([]string, len(c.members))
	for i, m := range c.members {
		hosts[i] = address(m.postgres.port)
	}
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=2",
		strings.Join(hosts, ","))
}

// Members returns all members.
func (c *Patroni) Members() []*PatroniMember { return slices.Clone(c.members) }

// Leader returns the member that Patroni takes for the leader and that answers.
func (c *Patroni) Leader() (*PatroniMember, error) {
	var failed []error
	for _, m := range c.members {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := get(ctx, m.api("/primary"))
		cancel()
		if err == nil {
			return m, nil
		}
		failed = append(failed, err)
	}
	return nil, fmt.Errorf("Patroni: no leader: %w", errors.Join(failed...))
}

// AwaitLeader waits until another member than the former leader is the leader, and takes writes.
func (c *Patroni) AwaitLeader(former *PatroniMember) (leader *PatroniMember, err error) {
	err = c.await("wait for a leader", func(ctx context.Context, found *PatroniMember, _ []*PatroniMember) error {
		if leader = found; leader == former {
			return fmt.Errorf("%s is still the leader", leader.name)
		}
		return RunStatements(ctx, leader.DSN(), "SELECT 1 / (NOT pg_is_in_recovery())::int")
	})
	return leader, err
}

// explain adds the ends of the members' logs to an error.
func (c *Patroni) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	var logs strings.Builder
	for _, m := range c.members {
		fmt.Fprintf(&logs, "\n%s: %s", m.name, logTail(m.patroni.log()))
	}
	return fmt.Errorf("Patroni: %s: %w%s", what, err, &logs)
}

// AwaitReplicas waits until each member that is neither killed nor frozen follows the leader, and
// commits wait for one of them.
func (c *Patroni) AwaitReplicas() error {
	return c.await("wait for replicas", func(ctx context.Context, leader *PatroniMember, replicas []*PatroniMember) error {
		return RunStatements(ctx, leader.DSN(), fmt.Sprintf(`SELECT 1 / (count(*) = %d
			AND count(*) FILTER (WHERE sync_state = 'sync') = %d)::int
			FROM pg_stat_replication WHERE state = 'streaming' AND application_name LIKE 'member%%'`,
			len(replicas), min(len(replicas), 1)))
	})
}

// AwaitCandidate waits until a replica may become the leader. That is later than AwaitReplicas:
// Patroni publishes who may once commits wait for it.
func (c *Patroni) AwaitCandidate() error {
	return c.await("wait for a candidate", func(ctx context.Context, _ *PatroniMember, replicas []*PatroniMember) error {
		if !slices.ContainsFunc(replicas, func(m *PatroniMember) bool { return get(ctx, m.api("/synchronous")) == nil }) {
			return errors.New("no replica may become the leader")
		}
		return nil
	})
}

// await waits for a condition of the leader and of those replicas that are neither killed nor frozen.
func (c *Patroni) await(what string, condition func(context.Context, *PatroniMember, []*PatroniMember) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	return c.explain(what, poll(ctx, func(ctx context.Context) error {
		leader, err := c.Leader()
		if err != nil {
			return err
		}
		return condition(ctx, leader, slices.DeleteFunc(c.Members(), func(m *PatroniMember) bool {
			return m == leader || m.isAway()
		}))
	}))
}

// SwitchOver hands the leader's role to a replica that Patroni chooses, as an operator does. It asks
// again when Patroni refuses, which it does while no replica is ready.
func (c *Patroni) SwitchOver() error {
	former, err := c.Leader()
	if err != nil {
		return err
	}
	return c.await("switch over", func(ctx context.Context, leader *PatroniMember, _ []*PatroniMember) error {
		if leader != former {
			return nil
		}
		return errors.Join(fmt.Errorf("%s is still the leader", leader.name),
			post(ctx, leader.api("/switchover"), settings{"leader": leader.name}))
	})
}

// ExpireLeader deletes the leader's key in etcd, as etcd does after a ttl without a sign of the leader.
func (c *Patroni) ExpireLeader() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return wrap("Patroni: expire the leader", c.deleteKey(ctx, "leader"))
}

// deleteKey deletes one of the cluster's keys in etcd.
func (c *Patroni) deleteKey(ctx context.Context, name string) error {
	return post(ctx, c.etcdURL()+"/v3/kv/deleterange", settings{"key": []byte("/service/inbox/" + name)})
}

// Close kills all members and etcd, and removes their data.
func (c *Patroni) Close() error {
	var failed []error
	for _, m := range c.members {
		failed = append(failed, m.locked("close", m.close))
	}
	if c.etcd != nil {
		failed = append(failed, c.etcd.Close())
	}
	return errors.Join(failed...)
}

// Name returns the member's name in Patroni.
func (m *PatroniMember) Name() string { return m.name }

// DSN returns the URL of the database "postgres" of this member alone.
func (m *PatroniMember) DSN() string { return m.postgres.DSN() }

// Start starts a killed member again, and waits for its Patroni. That brings PostgreSQL back, as a
// replica if there is another leader.
func (m *PatroniMember) Start() error {
	return m.locked("start", func() error {
		err := m.patroni.Start()
		m.away = m.away && err != nil
		return err
	})
}

// Kill kills Patroni and PostgreSQL with SIGKILL, like the loss of the machine.
func (m *PatroniMember) Kill() error {
	return m.locked("kill", func() error {
		m.away = true
		// Patroni first: it would start PostgreSQL again.
		return errors.Join(m.patroni.Kill(), m.freezePostgres(), m.endFrozen((*family).kill))
	})
}

// KillPostgres kills PostgreSQL alone with SIGKILL. The Patroni of a leader gives the leader's role
// away, that of a replica starts it again.
func (m *PatroniMember) KillPostgres() error {
	return m.locked("kill PostgreSQL", func() error {
		err := m.freezePostgres()
		if err == nil && len(m.frozen) == 0 {
			err = errors.New("not running")
		}
		return errors.Join(err, m.endFrozen((*family).kill))
	})
}

// Freeze stops Patroni and all of PostgreSQL's processes with SIGSTOP. Connections stay open and get no
// response.
func (m *PatroniMember) Freeze() error {
	return m.locked("freeze", func() error {
		m.away = true
		return errors.Join(m.patroni.Freeze(), m.freezePostgres())
	})
}

// Thaw continues a frozen member.
func (m *PatroniMember) Thaw() error {
	return m.locked("thaw", func() error {
		m.away = false
		return errors.Join(m.endFrozen((*family).thaw), m.patroni.Thaw())
	})
}

// freezePostgres stops the processes that work on the data directory, and their children.
func (m *PatroniMember) freezePostgres() error {
	pids, err := processesOf(m.postgres.data())
	for _, pid := range pids {
		f, failed := freezeFamily(pid)
		m.frozen, err = append(m.frozen, f), errors.Join(err, failed)
	}
	return err
}

// endFrozen kills or continues what is frozen.
func (m *PatroniMember) endFrozen(how func(*family) error) (err error) {
	for _, f := range m.frozen {
		err = errors.Join(err, how(f))
	}
	m.frozen = nil
	return err
}

// Disconnect cuts this member off from etcd, silently. Clients and other members still reach its
// PostgreSQL.
func (m *PatroniMember) Disconnect() error { return m.gateway.Freeze() }

// Reconnect ends Disconnect.
func (m *PatroniMember) Reconnect() error { return m.gateway.Thaw() }

func (m *PatroniMember) close() (err error) {
	if m.patroni != nil {
		err = errors.Join(m.patroni.Close(), m.quit())
	}
	if m.gateway != nil {
		err = errors.Join(err, m.gateway.Close())
	}
	if m.postgres != nil {
		err = errors.Join(err, m.guard.dismiss(), m.postgres.Close())
	}
	m.guard = nil
	return err
}

// quit ends PostgreSQL at once. A SIGKILL alone would leave its shared memory on the machine.
func (m *PatroniMember) quit() error {
	pids, err := processesOf(m.postgres.data())
	err = errors.Join(err, signalAll(syscall.SIGQUIT, pids...), m.endFrozen((*family).thaw))
	_ = pollFor(stopTimeout, func() bool { return gone(pids...) }) // what remains is killed
	return errors.Join(err, m.freezePostgres(), m.endFrozen((*family).kill))
}

func (m *PatroniMember) locked(what string, do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return wrap(m.name+": "+what, do())
}

func (m *PatroniMember) isAway() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

// api returns a URL of Patroni's REST API.
func (m *PatroniMember) api(path string) string { return "http://" + address(m.patroni.port) + path }

// apiClient keeps no connections, so that none outlives a cluster.
var apiClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// get returns an error unless the URL answers with status 200.
func get(ctx context.Context, url string) error { return request(ctx, http.MethodGet, url, nil) }

// post is like get, with a body in JSON.
func post(ctx context.Context, url string, body settings) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return request(ctx, http.MethodPost, url, content)
}

func request(ctx context.Context, method, url string, body []byte) (err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := apiClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1000))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", request.URL, response.Status, text)
	}
	return err
}

// HAProxy leads connections to the leader of a cluster. It asks each member's Patroni every half
// second, and closes the connections to a member that stops being the leader.
type HAProxy struct{ *server }

// StartHAProxy starts the haproxy found on the PATH in front of a cluster.
func (c *Patroni) StartHAProxy() (*HAProxy, error) {
	binary, err := lookPath("haproxy")
	if err != nil {
		return nil, Missing{Server: "HAProxy", Install: "haproxy"}.because(err.Error(), nil)
	}
	server, err := newServer("HAProxy", nil)
	if err != nil {
		return nil, err
	}
	h := &HAProxy{server}
	var content bytes.Buffer
	fmt.Fprintf(&content, `global
	maxconn 2000
defaults
	mode tcp
	timeout connect 1s
	timeout check 3s
	timeout client 1h
	timeout server 1h
listen leader
	bind %s
	option httpchk GET /primary
	http-check expect status 200
	default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
`, address(h.port))
	for _, m := range c.members {
		fmt.Fprintf(&content, "\tserver %s %s check port %d\n", m.name, address(m.postgres.port), m.patroni.port)
	}
	h.ready = func(ctx context.Context) error { return PingPostgres(ctx, h.DSN()) }
	if err := h.startConfigured(binary, content.Bytes(), "-db", "-f"); err != nil {
		return nil, err
	}
	return h, nil
}

// DSN returns a DSN of the leader's database "postgres".
func (h *HAProxy) DSN() string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&connect_timeout=2", address(h.port))
}
