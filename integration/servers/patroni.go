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
	"strconv"
	"strings"
	"sync"
	"time"
)

// PatroniOptions configures StartPatroni. The zero value is right for most tests.
type PatroniOptions struct {
	// Members is how many PostgreSQL servers there are. The default is 3.
	Members int
	// Asynchronous makes commits wait for no replica. By default they wait for one.
	Asynchronous bool
	// TTL, LoopWait and RetryTimeout are Patroni's settings of these names. The defaults are 20 s, 1 s
	// and 3 s, the smallest that newer versions of Patroni accept.
	TTL, LoopWait, RetryTimeout time.Duration
}

// Patroni is a cluster of PostgreSQL servers. Patroni chooses which of them is the leader, and keeps
// that in an etcd of the cluster's own. Each member has its own way to etcd.
type Patroni struct {
	members []*PatroniMember
	etcd    *server
	options PatroniOptions
}

// PatroniMember is a PostgreSQL server with the Patroni that controls it.
type PatroniMember struct {
	name     string
	postgres *Postgres // its port and programs; Patroni starts and stops it
	patroni  *server   // its port is the one of Patroni's REST API
	gateway  *server   // the way to etcd

	mu     sync.Mutex
	frozen *family // PostgreSQL's processes that Freeze stopped; nil otherwise
	guard  *guard  // kills PostgreSQL if this process dies; nil after close
	away   bool    // killed or frozen
}

// StartPatroni starts a new cluster, and waits until each replica follows the leader. It takes
// patroni and etcd from the PATH.
func StartPatroni(options PatroniOptions) (*Patroni, error) {
	programs, err := findPatroni()
	if err != nil {
		return nil, err
	}
	if options.Members == 0 {
		options.Members = 3
	}
	for setting, otherwise := range map[*time.Duration]time.Duration{
		&options.TTL: 20 * time.Second, &options.LoopWait: time.Second, &options.RetryTimeout: 3 * time.Second,
	} {
		if *setting == 0 {
			*setting = otherwise
		}
	}
	c := &Patroni{options: options}
	if err := c.start(programs); err != nil {
		return nil, errors.Join(fmt.Errorf("Patroni: %w", err), c.Close())
	}
	return c, nil
}

// patroniPrograms are the paths of programs, and the directory of PostgreSQL's.
type patroniPrograms struct{ patroni, etcd, postgres string }

func findPatroni() (p patroniPrograms, err error) {
	missing := Missing{Server: "Patroni", Install: "patroni, etcd-server and postgresql"}
	for name, path := range map[string]*string{"patroni": &p.patroni, "etcd": &p.etcd} {
		if *path, err = lookPath(name); err != nil {
			return p, missing.because(err.Error(), nil)
		}
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

func (c *Patroni) start(programs patroniPrograms) error {
	if err := c.startEtcd(programs.etcd); err != nil {
		return err
	}
	for i := range c.options.Members {
		m, err := c.newMember(fmt.Sprintf("member%d", i+1), programs)
		if err != nil {
			return err
		}
		c.members = append(c.members, m)
	}
	// The first one makes the cluster, which the others copy.
	if err := c.members[0].Start(); err != nil {
		return err
	}
	failed := make([]error, len(c.members))
	var starting sync.WaitGroup
	for i, m := range c.members[1:] {
		starting.Go(func() { failed[i] = m.Start() })
	}
	starting.Wait()
	return errors.Join(append(failed, c.AwaitReplicas())...)
}

func (c *Patroni) startEtcd(program string) (err error) {
	if c.etcd, err = newServer("etcd", nil); err != nil {
		return err
	}
	peers, err := freePort()
	if err != nil {
		return err
	}
	clientURL, peerURL := "http://"+address(c.etcd.port), "http://"+address(peers)
	c.etcd.command = func() *exec.Cmd {
		return exec.Command(program, "--data-dir", c.etcd.directory.join("data"), "--listen-client-urls", clientURL,
			"--advertise-client-urls", clientURL, "--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL,
			"--initial-cluster", "default="+peerURL)
	}
	c.etcd.ready = func(ctx context.Context) error { return get(ctx, clientURL+"/health") }
	return c.etcd.Start()
}

// newMember returns a member without data that does not run.
func (c *Patroni) newMember(name string, programs patroniPrograms) (m *PatroniMember, err error) {
	m = &PatroniMember{name: name}
	if m.postgres, err = newPostgres(programs.postgres, nil); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if m.gateway, err = newServer("etcd-gateway", nil); err != nil {
		return nil, err
	}
	m.gateway.command = func() *exec.Cmd {
		return exec.Command(programs.etcd, "gateway", "start", "--listen-addr", address(m.gateway.port),
			"--endpoints", address(c.etcd.port))
	}
	m.gateway.ready = func(ctx context.Context) error { return get(ctx, "http://"+address(m.gateway.port)+"/health") }
	if err = m.gateway.Start(); err != nil {
		return nil, err
	}
	if m.patroni, err = newServer("Patroni", m.postgres.account); err != nil {
		return nil, err
	}
	configuration, err := json.Marshal(c.configuration(m))
	if err != nil {
		return nil, err
	}
	file := m.patroni.directory.join("patroni.yml") // JSON is YAML
	if err = os.WriteFile(file, configuration, 0o644); err != nil {
		return nil, err
	}
	m.patroni.command = func() *exec.Cmd {
		command := m.postgres.program("patroni", file)
		command.Path = programs.patroni
		return command
	}
	m.patroni.ready = func(ctx context.Context) error { return get(ctx, m.api("/health")) }
	// Patroni detaches PostgreSQL, which would outlive both.
	m.guard, err = startGuardThat(
		`pid=$(head -n 1 "$1/postmaster.pid") && ps -o args= -p "$pid" | grep -qF -- "$1" && kill -KILL "$pid"`,
		m.postgres.data())
	return m, err
}

type object map[string]any

func (c *Patroni) configuration(m *PatroniMember) object {
	seconds := func(d time.Duration) int { return int(d.Seconds()) }
	user := object{"username": "postgres"}
	return object{
		"scope": "inbox", "name": m.name,
		"restapi": object{"listen": address(m.patroni.port), "connect_address": address(m.patroni.port)},
		// Otherwise Patroni would ask etcd for its address, and leave the gateway out.
		"etcd3": object{"hosts": []string{address(m.gateway.port)}, "use_proxies": true},
		"bootstrap": object{
			"dcs": object{
				"ttl": seconds(c.options.TTL), "loop_wait": seconds(c.options.LoopWait),
				"retry_timeout":    seconds(c.options.RetryTimeout),
				"synchronous_mode": !c.options.Asynchronous,
				// A leader whose PostgreSQL has died is replaced at once.
				"master_start_timeout": 0,
				// A test chooses how far a replica may be behind.
				"maximum_lag_on_failover": 1 << 30,
				"postgresql": object{
					"use_pg_rewind": true,
					"parameters":    object{"max_connections": 300},
				},
			},
			"initdb": []any{object{"encoding": "UTF8"}, object{"locale": "C"}, object{"auth": "trust"}, "no-sync"},
		},
		"postgresql": object{
			"listen": address(m.postgres.port), "connect_address": address(m.postgres.port),
			"data_dir": m.postgres.data(), "bin_dir": m.postgres.binaries, "pgpass": m.patroni.directory.join("pgpass"),
			"authentication": object{"superuser": user, "replication": user, "rewind": user},
			"parameters":     object{"unix_socket_directories": m.postgres.directory.path},
			"basebackup":     []any{object{"checkpoint": "fast"}, "no-sync"},
			"pg_hba": []string{"local all all trust", "host all all 127.0.0.1/32 trust",
				"host replication all 127.0.0.1/32 trust"},
		},
	}
}

// DSN returns the URL of the database "postgres" with all members. A client connects to the one that
// takes writes, and tries another one after a second without a response.
func (c *Patroni) DSN() string {
	hosts := make([]string, len(c.members))
	for i, m := range c.members {
		hosts[i] = address(m.postgres.port)
	}
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=1",
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

// AwaitLeader waits until another member than these is the leader, and takes writes.
func (c *Patroni) AwaitLeader(not ...*PatroniMember) (leader *PatroniMember, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err = poll(ctx, func(ctx context.Context) error {
		if leader, err = c.Leader(); err != nil {
			return err
		}
		if slices.Contains(not, leader) {
			return fmt.Errorf("%s is still the leader", leader.name)
		}
		return runStatements(ctx, leader.DSN(), "SELECT 1 / (NOT pg_is_in_recovery())::int")
	})
	return leader, c.explain("wait for a leader", err)
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
// commits wait for one of them unless the cluster is asynchronous.
func (c *Patroni) AwaitReplicas() error {
	return c.await("wait for replicas", func(ctx context.Context, leader *PatroniMember, replicas []*PatroniMember) error {
		synchronous := 0
		if !c.options.Asynchronous && len(replicas) > 0 {
			synchronous = 1
		}
		return runStatements(ctx, leader.DSN(), fmt.Sprintf(`SELECT 1 / (count(*) = %d
			AND count(*) FILTER (WHERE sync_state = 'sync') = %d)::int
			FROM pg_stat_replication WHERE state = 'streaming' AND application_name LIKE 'member%%'`,
			len(replicas), synchronous))
	})
}

// AwaitCandidate waits until a replica may become the leader. In a synchronous cluster that is later
// than AwaitReplicas: Patroni publishes who may once commits wait for it.
func (c *Patroni) AwaitCandidate() error {
	path := "/synchronous"
	if c.options.Asynchronous {
		path = "/replica"
	}
	return c.await("wait for a candidate", func(ctx context.Context, _ *PatroniMember, replicas []*PatroniMember) error {
		if !slices.ContainsFunc(replicas, func(m *PatroniMember) bool { return get(ctx, m.api(path)) == nil }) {
			return errors.New("no replica may become the leader")
		}
		return nil
	})
}

// await waits for a condition of the leader and of those replicas that are neither killed nor frozen.
func (c *Patroni) await(what string, condition func(context.Context, *PatroniMember, []*PatroniMember) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
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

// SwitchOver hands the leader's role to a replica that Patroni chooses, as an operator does, and
// returns the new leader.
func (c *Patroni) SwitchOver() (*PatroniMember, error) {
	if err := c.AwaitCandidate(); err != nil {
		return nil, err
	}
	leader, err := c.Leader()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	body := bytes.NewReader(fmt.Appendf(nil, `{"leader": %q}`, leader.name))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, leader.api("/switchover"), body)
	if err == nil {
		err = respond(request)
	}
	if err != nil {
		return nil, fmt.Errorf("Patroni: switch over: %w", err)
	}
	return c.AwaitLeader(leader)
}

// Close kills all members and etcd, and removes their data.
func (c *Patroni) Close() error {
	var failed []error
	for _, m := range c.members {
		failed = append(failed, m.close())
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

// Start starts a killed member again. Patroni then brings it back, as a replica if there is another
// leader.
func (m *PatroniMember) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.patroni.Start(); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	m.away = false
	return nil
}

// Kill kills PostgreSQL and Patroni with SIGKILL, like the loss of the machine.
func (m *PatroniMember) Kill() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.locked("kill", m.kill)
}

func (m *PatroniMember) kill() error {
	err := m.freeze()
	killed := m.frozen.kill()
	m.frozen = nil
	return errors.Join(err, killed, m.patroni.Kill())
}

// KillPostgres kills PostgreSQL alone with SIGKILL. Its Patroni gives the leader's role away.
func (m *PatroniMember) KillPostgres() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.locked("kill PostgreSQL", func() error {
		pid, err := m.postmaster()
		if err != nil || pid == 0 {
			return err
		}
		f, err := freezeFamily(pid)
		return errors.Join(err, f.kill())
	})
}

// Freeze stops Patroni and all of PostgreSQL's processes with SIGSTOP, like a machine that is
// suspended. Connections stay open and get no response.
func (m *PatroniMember) Freeze() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.locked("freeze", m.freeze)
}

func (m *PatroniMember) freeze() error {
	m.away = true
	var stopped error
	if m.patroni.PID() != 0 {
		stopped = m.patroni.Freeze() // first: it would start PostgreSQL again
	}
	pid, err := m.postmaster()
	if err == nil && pid != 0 && m.frozen == nil {
		m.frozen, err = freezeFamily(pid)
	}
	return errors.Join(stopped, err)
}

// Thaw continues a frozen member.
func (m *PatroniMember) Thaw() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.locked("thaw", func() error {
		thawed := m.frozen.thaw()
		m.frozen, m.away = nil, false
		return errors.Join(thawed, m.patroni.Thaw())
	})
}

// Disconnect cuts this member off from etcd, silently. Clients and other members still reach its
// PostgreSQL.
func (m *PatroniMember) Disconnect() error { return m.gateway.Freeze() }

// Reconnect ends Disconnect.
func (m *PatroniMember) Reconnect() error { return m.gateway.Thaw() }

func (m *PatroniMember) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	failed := []error{}
	if m.patroni != nil {
		failed = append(failed, m.locked("close", m.kill), m.patroni.Close())
	}
	if m.gateway != nil {
		failed = append(failed, m.gateway.Close())
	}
	failed = append(failed, m.guard.dismiss(), m.postgres.Close())
	m.guard = nil
	return errors.Join(failed...)
}

func (m *PatroniMember) locked(what string, do func() error) error {
	return wrap(m.name+": "+what, do())
}

func (m *PatroniMember) isAway() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

// api returns a URL of Patroni's REST API.
func (m *PatroniMember) api(path string) string { return "http://" + address(m.patroni.port) + path }

// postmaster returns the process ID of PostgreSQL's main process, or 0 if it does not run. A file
// that a killed one has left may name another program's process.
func (m *PatroniMember) postmaster() (int, error) {
	content, err := os.ReadFile(filepath.Join(m.postgres.data(), "postmaster.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return 0, fmt.Errorf("postmaster.pid: %w", err)
	}
	arguments, err := exec.Command("ps", "-o", "args=", "-p", first).Output()
	if err != nil || !strings.Contains(string(arguments), m.postgres.data()) {
		return 0, nil // ps fails if there is no such process
	}
	return pid, nil
}

// apiClient keeps no connections, so that none outlives a cluster.
var apiClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// get returns an error unless the URL answers with status 200.
func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return respond(request)
}

func respond(request *http.Request) (err error) {
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
	fmt.Fprintf(&content, `defaults
	mode tcp
	timeout connect 1s
	timeout check 1s
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
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&connect_timeout=1", address(h.port))
}
