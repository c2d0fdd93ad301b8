package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/segmentio/kafka-go"
)

// ClusterOptions configures StartCluster.
type ClusterOptions struct {
	// Through, if not nil, is called with each broker's address and returns the address that
	// clients are told instead. Replication and the Admin connect to the brokers directly.
	Through func(broker string) (advertised string, err error)
}

// Cluster is two brokers, 1 and 2, and a controller that is not disturbed. All topics have a
// replica on each broker and accept writes while one of them is in sync. Its Admin uses whichever
// broker answers.
type Cluster struct {
	*Admin
	nodes      []*Kafka // the brokers and the controller, each at its ID minus one
	advertised []string
}

// clusterSettings are those of all nodes. A missing broker is noticed within seconds.
var clusterSettings = map[string]string{
	"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
	"default.replication.factor":     "2", "offsets.topic.replication.factor": "2",
	"transaction.state.log.replication.factor": "2", "share.coordinator.state.topic.replication.factor": "2",
	"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "250",
	"replica.lag.time.max.ms": "3000", "replica.fetch.wait.max.ms": "200", "controller.quorum.fetch.timeout.ms": "2000",
	"replica.socket.timeout.ms": "3000", "controller.socket.timeout.ms": "3000",
}

// StartCluster makes a new cluster and waits until it serves requests and groups.
func StartCluster(options ClusterOptions) (*Cluster, error) {
	java, err := findKafka()
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	if err := c.start(java, options); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(java java, options ClusterOptions) error {
	for range 2 {
		if err := c.addBroker(java, options); err != nil {
			return err
		}
	}
	controller, err := c.addNode(java, 128, "CONTROLLER")
	if err != nil {
		return err
	}
	controller.settings["process.roles"] = "controller"
	controller.settings["listeners"] = controller.listener("CONTROLLER")
	voter := address(controller.ports["CONTROLLER"])
	controller.ready = func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", voter)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	for _, node := range c.nodes {
		node.settings["controller.quorum.voters"] = fmt.Sprintf("%d@%s", len(c.nodes), voter)
	}
	c.Admin = NewAdmin(c.nodes[0].brokers[0], c.nodes[1].brokers[0])
	// Concurrently, because each program takes seconds to start.
	clusterID := newClusterID()
	if err := c.together(func(k *Kafka) error { return k.format(clusterID) }); err != nil {
		return err
	}
	if err := c.together((*Kafka).Start); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	// Wait until groups can be joined and nothing depends on a single broker.
	return wrap("Kafka: start", poll(ctx, func(ctx context.Context) error {
		_, err := c.Coordinator(ctx, probeGroup)
		return errors.Join(err, c.inSync(ctx))
	}))
}

// addBroker adds a broker with another listener for clients than for the other nodes.
func (c *Cluster) addBroker(java java, options ClusterOptions) error {
	broker, err := c.addNode(java, 256, "CLIENTS")
	if err != nil {
		return err
	}
	id, advertised := len(c.nodes), broker.Listener("CLIENTS")[0]
	broker.settings["process.roles"] = "broker"
	broker.settings["listeners"] = broker.listener("PLAINTEXT") + "," + broker.listener("CLIENTS")
	if options.Through != nil {
		if advertised, err = options.Through(advertised); err != nil {
			return fmt.Errorf("Kafka: a way to broker %d: %w", id, err)
		}
	}
	broker.settings["advertised.listeners"] = broker.listener("PLAINTEXT") + ",CLIENTS://" + advertised
	c.advertised = append(c.advertised, advertised)
	broker.ready = func(ctx context.Context) error { // answers, and the cluster counts it among its brokers
		response, err := broker.client.Metadata(ctx, &kafka.MetadataRequest{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(response.Brokers, func(b kafka.Broker) bool { return b.ID == id }) {
			return fmt.Errorf("broker %d is not in the cluster yet", id)
		}
		return nil
	}
	return nil
}

// addNode adds a node with the next ID and a listener besides PLAINTEXT.
func (c *Cluster) addNode(java java, heap int, listener string) (*Kafka, error) {
	node, err := newKafka(java, heap, listener)
	if err != nil {
		return nil, err
	}
	c.nodes = append(c.nodes, node)
	node.settings = maps.Clone(clusterSettings)
	node.settings["node.id"] = fmt.Sprint(len(c.nodes))
	return node, nil
}

// Brokers returns the bootstrap list for clients. It stays the same across restarts.
func (c *Cluster) Brokers() []string { return c.advertised }

// Broker returns one of the two brokers by its ID, to stop, kill, freeze and start it. A broker
// that has started serves requests before its replicas have caught up, see AwaitInSync.
func (c *Cluster) Broker(id int) *Kafka { return c.nodes[id-1] }

// Other returns the ID of the other broker.
func (c *Cluster) Other(id int) int { return 3 - id }

// AwaitInSync waits until each of the brokers sees all replicas of every partition in sync. Then no
// broker is the only one with some of the data. A broker that was frozen does not know at first
// what changed meanwhile.
func (c *Cluster) AwaitInSync(ctx context.Context) error {
	for id := 1; id <= 2; id++ {
		if err := poll(ctx, c.Broker(id).inSync); err != nil {
			return fmt.Errorf("await replicas in sync: %w", err)
		}
	}
	return nil
}

// Close kills all nodes and removes their data.
func (c *Cluster) Close() error {
	c.Admin.Close()
	return c.together((*Kafka).Close)
}

// together runs do for all nodes concurrently.
func (c *Cluster) together(do func(*Kafka) error) error {
	failed := make([]error, len(c.nodes))
	var all sync.WaitGroup
	for i, node := range c.nodes {
		all.Go(func() { failed[i] = do(node) })
	}
	all.Wait()
	return errors.Join(failed...)
}
