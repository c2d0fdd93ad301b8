package servers

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// KafkaOptions configures StartKafka. The zero value is right for most tests.
type KafkaOptions struct {
	// Settings are added to the broker's settings (server.properties), or replace them. Don't set
	// listeners, process.roles or log.dirs.
	Settings map[string]string
	// Listeners are the names of further listeners for clients, with their security protocols. See
	// Kafka.Listener.
	Listeners map[string]string
}

// Kafka is a broker with a cluster of its own in one process (KRaft, combined mode), or a node of a
// Cluster. Its Admin methods are usable while it runs. After Kill, the next Start recovers from the
// log.
type Kafka struct {
	*server
	*Admin
	java     java
	heap     int            // in megabytes
	ports    map[string]int // of the listeners by their names
	settings map[string]string
}

// probeGroup is a group without members.
const probeGroup = "inbox-test"

// StartKafka makes a new broker and waits until it serves requests and groups.
func StartKafka(options KafkaOptions) (*Kafka, error) {
	java, err := findKafka()
	if err != nil {
		return nil, err
	}
	protocols := map[string]string{"CONTROLLER": "PLAINTEXT"}
	maps.Copy(protocols, options.Listeners)
	k, err := newKafka(java, 384, slices.Collect(maps.Keys(protocols))...)
	if err != nil {
		return nil, err
	}
	protocols["PLAINTEXT"] = "PLAINTEXT"
	var listeners, mapping []string
	for name, protocol := range protocols {
		listeners = append(listeners, k.listener(name))
		mapping = append(mapping, name+":"+protocol)
	}
	k.settings = map[string]string{
		"process.roles": "broker,controller", "node.id": "1",
		"controller.quorum.voters":       "1@" + address(k.ports["CONTROLLER"]),
		"listeners":                      strings.Join(listeners, ","),
		"listener.security.protocol.map": strings.Join(mapping, ","),
	}
	maps.Copy(k.settings, options.Settings)
	if err = k.format(newClusterID()); err == nil {
		err = k.Start()
	}
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// newKafka returns a node without data that does not run. It has a port for the listener PLAINTEXT
// and for each further one.
func newKafka(java java, heap int, further ...string) (*Kafka, error) {
	server, err := newServer("Kafka", nil)
	if err != nil {
		return nil, err
	}
	k := &Kafka{server: server, java: java, heap: heap, ports: map[string]int{"PLAINTEXT": server.port}}
	for _, name := range further {
		if k.ports[name], err = freePort(); err != nil {
			return nil, errors.Join(fmt.Errorf("Kafka: %w", err), server.Close())
		}
	}
	k.Admin = NewAdmin(k.Brokers()...)
	k.command = func() *exec.Cmd { return k.program("kafka.Kafka", k.settingsFile()) }
	k.ready = func(ctx context.Context) error {
		if err := k.Ping(ctx); err != nil {
			return err
		}
		_, err := k.Coordinator(ctx, probeGroup) // groups can be joined a moment later
		return err
	}
	return k, nil
}

// listener returns a listener as an item of the settings.
func (k *Kafka) listener(name string) string { return name + "://" + address(k.ports[name]) }

// format creates the data directory of a node of this cluster.
func (k *Kafka) format(clusterID string) error {
	settings := map[string]string{
		"log.dirs": k.directory.join("data"), "controller.listener.names": "CONTROLLER",
		"inter.broker.listener.name": "PLAINTEXT",

		// No topic is created implicitly, and waiting times are short.
		"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0",
		"group.min.session.timeout.ms": "1000", "log.cleaner.backoff.ms": "500", "log.segment.delete.delay.ms": "500",
		// How long a broker that comes back after a crash stays fenced.
		"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500",

		// Internal topics are small and not replicated.
		"offsets.topic.num.partitions": "4", "offsets.topic.replication.factor": "1",
		"transaction.state.log.num.partitions": "4", "transaction.state.log.replication.factor": "1",
		"transaction.state.log.min.isr":                "1",
		"share.coordinator.state.topic.num.partitions": "4", "share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr": "1",

		"num.network.threads": "2", "num.io.threads": "4", "log.cleaner.dedupe.buffer.size": "16777216",
	}
	maps.Copy(settings, k.settings)
	if err := os.WriteFile(k.settingsFile(), configuration(settings, "="), 0o644); err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	return wrap("Kafka: format", run(startTimeout, k.program("kafka.tools.StorageTool", "format",
		"--cluster-id", clusterID, "--config", k.settingsFile()), nil, k.log()))
}

func (k *Kafka) settingsFile() string { return k.directory.join("server.properties") }

// newClusterID returns 16 random bytes in Kafka's encoding.
func newClusterID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	id[0] &= 0x7f        // never a leading '-', which would look like an option
	return base64.RawURLEncoding.EncodeToString(id)
}

// Brokers returns the bootstrap list. It stays the same across restarts.
func (k *Kafka) Brokers() []string { return k.Listener("PLAINTEXT") }

// Listener returns the bootstrap list for clients of one of KafkaOptions.Listeners.
func (k *Kafka) Listener(name string) []string { return []string{address(k.ports[name])} }

// Start starts the broker again on the same port and data, and waits until it serves requests. It
// does nothing if the broker runs.
func (k *Kafka) Start() error {
	k.Admin.Close() // its metadata is from the previous run
	return k.server.Start()
}

// Close kills the broker and removes its data.
func (k *Kafka) Close() error {
	defer k.Admin.Close()
	return k.server.Close()
}
