package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
)

// ClusterOptions configures StartCluster.
type ClusterOptions struct {
	// Heap is each broker's maximum heap in megabytes. The default is 256.
	Heap int
	// Settings are added to the settings of all nodes, or replace them.
	Settings map[string]string
	// Through, if not nil, is called with each broker's address and returns the address that
	// clients are told instead. Replication and the Admin connect to the brokers directly.
	Through func(broker string) (advertised string, err error)
}

// Cluster is two brokers, 1 and 2, and a controller that is not disturbed. All topics have a
// replica on each broker and accept writes while one of them is in sync. Its Admin uses whichever
// broker answers.
type Cluster struct {
	*Admin
	controller *Kafka
	brokers    []*Kafka
	advertised []string
}

// controllerID is the ID after those of the brokers.
const controllerID = 3

// StartCluster makes a new cluster and waits until it serves requests and groups. If Kafka is
// missing, the error is one line that says where it was looked for and how to install it.
func StartCluster(options ClusterOptions) (*Cluster, error) {
	launcher, err := findKafka()
	if err != nil {
		return nil, err
	}
	for range 3 {
		c := &Cluster{}
		if err = c.start(launcher, options); err == nil {
			return c, nil
		}
		err = errors.Join(err, c.Close())
		if !portTaken(err) {
			break
		}
	}
	return nil, err
}

func (c *Cluster) start(launcher launcher, options ClusterOptions) error {
	if err := c.plan(launcher, options); err != nil {
		return err
	}
	clusterID := newClusterID()
	nodes := append([]*Kafka{c.controller}, c.brokers...)
	// Concurrently, because each program takes seconds to start.
	if err := together(nodes, func(k *Kafka) error { return k.format(clusterID) }); err != nil {
		return err
	}
	if err := together(nodes, (*Kafka).Start); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return c.controller.process.waitUntil(ctx, c.ready)
}

// plan assigns ports and settings to every node.
func (c *Cluster) plan(launcher launcher, options ClusterOptions) (err error) {
	ports := make([]int, 5) // the controller's, and two for each broker
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return fmt.Errorf("Kafka: %w", err)
		}
	}
	common := map[string]string{
		"controller.quorum.voters":       fmt.Sprintf("%d@%s", controllerID, address(ports[0])),
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"default.replication.factor":     "2", "offsets.topic.replication.factor": "2",
		"transaction.state.log.replication.factor":         "2",
		"share.coordinator.state.topic.replication.factor": "2",
		// A missing broker is noticed within seconds. The default is 9 s.
		"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "250",
		"replica.lag.time.max.ms": "3000", "replica.fetch.wait.max.ms": "200", "controller.quorum.fetch.timeout.ms": "2000",
		"replica.socket.timeout.ms": "3000", "controller.socket.timeout.ms": "3000",
	}
	node := func(id, heap int, own map[string]string) (*Kafka, error) {
		settings := maps.Clone(common)
		maps.Copy(settings, own)
		maps.Copy(settings, options.Settings)
		settings["node.id"] = fmt.Sprint(id)
		k, err := newKafka(launcher, KafkaOptions{Heap: heap, Settings: settings})
		if err == nil {
			k.clustered = true
		}
		return k, err
	}
	if options.Heap == 0 {
		options.Heap = 256
	}
	var direct []string
	for i := range 2 {
		inner, outer := address(ports[1+2*i]), address(ports[2+2*i])
		advertised := outer
		if options.Through != nil {
			if advertised, err = options.Through(outer); err != nil {
				return fmt.Errorf("Kafka: a way to broker %d: %w", i+1, err)
			}
		}
		broker, err := node(i+1, options.Heap, map[string]string{
			"process.roles":        "broker",
			"listeners":            fmt.Sprintf("PLAINTEXT://%s,CLIENTS://%s", inner, outer),
			"advertised.listeners": fmt.Sprintf("PLAINTEXT://%s,CLIENTS://%s", inner, advertised),
		})
		if err != nil {
			return err
		}
		broker.port, broker.Admin = ports[1+2*i], NewAdmin(inner)
		broker.replicas = 2
		broker.probe = broker.serves(i + 1)
		c.brokers = append(c.brokers, broker)
		c.advertised = append(c.advertised, advertised)
		direct = append(direct, inner)
	}
	c.Admin = NewAdmin(direct...)
	c.replicas = len(c.brokers)
	c.controller, err = node(controllerID, 128, map[string]string{
		"process.roles": "controller",
		"listeners":     "CONTROLLER://" + address(ports[0]), "advertised.listeners": "CONTROLLER://" + address(ports[0]),
	})
	if err != nil {
		return err
	}
	c.controller.port, c.controller.Admin = ports[0], NewAdmin(address(ports[0]))
	c.controller.probe = listens(address(ports[0]))
	return nil
}

// Brokers returns the bootstrap list for clients. It stays the same across restarts.
func (c *Cluster) Brokers() []string { return c.advertised }

// Broker returns one of the two brokers by its ID, to stop, kill, freeze and start it. A broker
// that has started serves requests before its replicas have caught up, see AwaitInSync.
func (c *Cluster) Broker(id int) *Kafka { return c.brokers[id-1] }

// Other returns the ID of the other broker.
func (c *Cluster) Other(id int) int { return len(c.brokers) + 1 - id }

// AwaitInSync waits until each of the brokers sees all replicas of every partition in sync. A
// broker that was frozen does not know at first what changed meanwhile.
func (c *Cluster) AwaitInSync(ctx context.Context) error {
	for _, broker := range c.brokers {
		if err := broker.AwaitInSync(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close kills all nodes and removes their data.
func (c *Cluster) Close() error {
	nodes := c.brokers
	if c.controller != nil {
		nodes = append(nodes[:len(nodes):len(nodes)], c.controller)
	}
	if c.Admin != nil {
		c.Admin.Close()
	}
	return together(nodes, (*Kafka).Close)
}

// ready returns an error until groups can be joined and nothing depends on a single broker.
func (c *Cluster) ready(ctx context.Context) error {
	if err := c.findCoordinator(ctx); err != nil {
		return err
	}
	return c.inSync(ctx)
}

// serves returns a probe that fails until this broker answers and the cluster counts it among its
// brokers.
func (k *Kafka) serves(id int) func(context.Context) error {
	return func(ctx context.Context) error {
		alive, err := k.Admin.alive(ctx)
		if err == nil && !alive[id] {
			err = fmt.Errorf("broker %d is not in the cluster yet", id)
		}
		return err
	}
}

func listens(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// together runs do for several nodes concurrently.
func together(nodes []*Kafka, do func(*Kafka) error) error {
	problems := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, node := range nodes {
		all.Go(func() { problems[i] = do(node) })
	}
	all.Wait()
	return errors.Join(problems...)
}
