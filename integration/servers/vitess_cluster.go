package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"time"
)

// The only cell, keyspace and shard of a cluster.
const (
	clusterCell     = "zone1"
	clusterKeyspace = "test"
	clusterShard    = clusterKeyspace + "/0"
)

// clusterTablets is one more than commits need, so that the primary may be lost.
const clusterTablets = 3

// controlTimeout bounds a command of an operator.
const controlTimeout = 60 * time.Second

// VitessCluster is an unsharded Vitess of processes of its own: etcd, a gateway, and three tablets with a MySQL each. A
// commit waits until one of the others has it. Do not use it concurrently.
type VitessCluster struct {
	// Tablets are the replicas and the primary, which is the first one after the start.
	Tablets []*VitessTablet
	etcd    *server
	gate    *server
	port    int // of the gateway, for clients of MySQL
}

// VitessTablet is a tablet and its MySQL.
type VitessTablet struct {
	*server
	MySQL *MySQL
	alias string
}

// StartVitessCluster starts all of its processes and waits until a statement reaches the primary.
func StartVitessCluster() (*VitessCluster, error) {
	c := &VitessCluster{}
	err := c.start()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *VitessCluster) start() error {
	if err := c.startTopology(); err != nil {
		return err
	}
	for i := range clusterTablets {
		if err := c.startTablet(100 + i); err != nil {
			return err
		}
	}
	if err := c.PlannedReparent(c.Tablets[0]); err != nil {
		return err
	}
	return c.startGate()
}

// startTopology starts etcd and describes the cluster there.
func (c *VitessCluster) startTopology() error {
	program, err := vitessProgram("etcd")
	if err != nil {
		return err
	}
	if c.etcd, err = newVitessServer("etcd"); err != nil {
		return err
	}
	peers, err := freePort()
	if err != nil {
		return err
	}
	clients, peer := "http://"+address(c.etcd.port), "http://"+address(peers)
	c.etcd.command = func() *exec.Cmd {
		return exec.Command(program, "--data-dir", c.etcd.directory.join("data"), "--listen-client-urls", clients,
			"--advertise-client-urls", clients, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", "default="+peer)
	}
	c.etcd.ready = listens(c.etcd.port)
	if err = c.etcd.Start(); err != nil {
		return err
	}
	err = c.control("AddCellInfo", "--root", "/vitess/"+clusterCell, "--server-address", address(c.etcd.port), clusterCell)
	if err == nil {
		err = c.control("CreateKeyspace", "--durability-policy", "semi_sync", clusterKeyspace)
	}
	return err
}

// startTablet starts a MySQL that writes a binary log and has no transaction in it yet, and its tablet, which is not
// serving yet.
func (c *VitessCluster) startTablet(number int) error {
	program, err := vitessProgram("vttablet")
	if err != nil {
		return err
	}
	mysql, err := StartMySQL(MySQLOptions{})
	if err != nil {
		return err
	}
	tablet := &VitessTablet{MySQL: mysql, alias: fmt.Sprintf("%s-%010d", clusterCell, number)}
	c.Tablets = append(c.Tablets, tablet)
	if tablet.server, err = newVitessServer("vttablet"); err != nil {
		return err
	}
	if err = mysql.Stop(); err != nil {
		return err
	}
	delete(mysql.settings, "skip_log_bin")
	delete(mysql.settings, "init_file") // it has run, and the server cannot run it while it is read-only
	maps.Copy(mysql.settings, map[string]string{
		"server_id": fmt.Sprint(number), "log_bin": "log", "sync_binlog": "1", "gtid_mode": "ON", "enforce_gtid_consistency": "ON",
		"plugin_load": "rpl_semi_sync_source=semisync_source.so;rpl_semi_sync_replica=semisync_replica.so",
		// Milliseconds, which are 50 days.
		"loose_rpl_semi_sync_source_timeout": "4294967295", "loose_rpl_semi_sync_source_wait_no_replica": "ON",
		"super_read_only": "ON", "skip_replica_start": "ON", "replica_net_timeout": "8",
	})
	if err = errors.Join(mysql.configure(), mysql.Start()); err != nil {
		return err
	}
	grpcPort, err := freePort()
	if err != nil {
		return err
	}
	arguments := append(c.topologyArguments(), "--tablet-path", tablet.alias, "--tablet-hostname", loopback,
		"--init-keyspace", clusterKeyspace, "--init-shard", "0", "--init-tablet-type", "replica", "--health-check-interval", "1s",
		"--port", fmt.Sprint(tablet.port), "--grpc-port", fmt.Sprint(grpcPort), "--bind-address", loopback,
		"--grpc-bind-address", loopback, "--service-map", "grpc-queryservice,grpc-tabletmanager,grpc-updatestream")
	arguments = append(arguments, loginArguments(mysql)...)
	tablet.command = func() *exec.Cmd { return vitessCommand(tablet.directory, program, arguments...) }
	tablet.ready = listens(grpcPort)
	return tablet.Start()
}

func (c *VitessCluster) startGate() error {
	program, err := vitessProgram("vtgate")
	if err == nil {
		c.gate, err = newVitessServer("vtgate")
	}
	if err == nil {
		c.port, err = freePort()
	}
	if err != nil {
		return err
	}
	arguments := append(c.topologyArguments(), "--port", fmt.Sprint(c.gate.port), "--bind-address", loopback,
		"--cell", clusterCell, "--cells-to-watch", clusterCell, "--tablet-types-to-wait", "PRIMARY,REPLICA")
	arguments = append(arguments, frontArguments(c.port)...)
	c.gate.command = func() *exec.Cmd { return vitessCommand(c.gate.directory, program, arguments...) }
	c.gate.ready = func(ctx context.Context) error { return pingTablet(ctx, c.DSN()) }
	return c.gate.Start()
}

// DSN returns the DSN of the keyspace "test" at the gateway.
func (c *VitessCluster) DSN() string { return vitessDSN(c.port, clusterKeyspace) }

// Data returns the DSN of the keyspace's data in the MySQL of a tablet.
func (t *VitessTablet) Data() string {
	return fmt.Sprintf("root@tcp(%s)/vt_%s?parseTime=true&loc=UTC&interpolateParams=true", address(t.MySQL.port), clusterKeyspace)
}

// Kill kills the tablet and its MySQL, like the loss of their machine.
func (t *VitessTablet) Kill() error { return errors.Join(t.MySQL.Kill(), t.server.Kill()) }

// PlannedReparent makes a tablet the primary while the former one runs.
func (c *VitessCluster) PlannedReparent(to *VitessTablet) error {
	return c.control("PlannedReparentShard", "--new-primary", to.alias, clusterShard)
}

// EmergencyReparent makes a tablet the primary after the former one is lost.
func (c *VitessCluster) EmergencyReparent(to *VitessTablet) error {
	return c.control("EmergencyReparentShard", "--new-primary", to.alias, clusterShard)
}

// control runs a command of an operator.
func (c *VitessCluster) control(arguments ...string) error {
	program, err := vitessProgram("vtctldclient")
	if err != nil {
		return err
	}
	arguments = append(append([]string{"--server", "internal"}, c.topologyArguments()...), arguments...)
	command := vitessCommand(c.etcd.directory, program, arguments...)
	return run(controlTimeout, command, c.etcd.account, c.etcd.directory.join("control.log"))
}

func (c *VitessCluster) topologyArguments() []string {
	return []string{"--topo-implementation", "etcd2", "--topo-global-server-address", address(c.etcd.port),
		"--topo-global-root", "/vitess/global"}
}

// Close kills all processes and removes their data.
func (c *VitessCluster) Close() error {
	var failed []error
	for _, server := range []*server{c.gate, c.etcd} {
		if server != nil {
			failed = append(failed, server.Close())
		}
	}
	for _, tablet := range c.Tablets {
		if tablet.server != nil {
			failed = append(failed, tablet.Close())
		}
		failed = append(failed, tablet.MySQL.Close())
	}
	return errors.Join(failed...)
}

// newVitessServer returns a server that refuses to run as root.
func newVitessServer(name string) (*server, error) {
	account, err := unprivileged()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return newServer(name, account)
}

// listens returns a probe that fails until a port takes connections.
func listens(port int) func(context.Context) error {
	return func(ctx context.Context) error {
		var dialer net.Dialer
		connection, err := dialer.DialContext(ctx, "tcp", address(port))
		if err == nil {
			err = connection.Close()
		}
		return err
	}
}
