package servers

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
)

// properties returns the broker's server.properties. One node is broker and controller, internal
// topics are small and unreplicated, no topic is created implicitly, and waiting times are short.
func (k *Kafka) properties() []byte {
	bind := k.launcher.bind()
	settings := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        "1",
		"controller.quorum.voters":       fmt.Sprintf("1@%s", address(k.control)),
		"listeners":                      fmt.Sprintf("PLAINTEXT://%s:%d,CONTROLLER://%s:%d", bind, k.port, bind, k.control),
		"advertised.listeners":           "PLAINTEXT://" + address(k.port),
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"controller.listener.names":      "CONTROLLER",
		"inter.broker.listener.name":     "PLAINTEXT",
		"log.dirs":                       k.launcher.dataPath(k),

		"auto.create.topics.enable":        "false",
		"num.partitions":                   "1",
		"default.replication.factor":       "1",
		"min.insync.replicas":              "1",
		"group.initial.rebalance.delay.ms": "0",
		"group.min.session.timeout.ms":     "1000",
		// How long a broker that comes back after a crash stays fenced.
		"broker.session.timeout.ms":    "3000",
		"broker.heartbeat.interval.ms": "500",

		"offsets.topic.num.partitions":                     "4",
		"offsets.topic.replication.factor":                 "1",
		"transaction.state.log.num.partitions":             "4",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"share.coordinator.state.topic.num.partitions":     "4",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",

		"num.network.threads":            "2",
		"num.io.threads":                 "4",
		"log.cleaner.dedupe.buffer.size": "16777216",
		"log.cleaner.backoff.ms":         "500",
		"log.segment.delete.delay.ms":    "500",
	}
	k.secured.add(settings, bind)
	maps.Copy(settings, k.settings)
	var file bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&file, "%s=%s\n", name, settings[name])
	}
	return file.Bytes()
}

// newClusterID returns 16 random bytes in Kafka's encoding.
func newClusterID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	id[0] &= 0x7f        // never a leading '-', which would look like an option
	return base64.RawURLEncoding.EncodeToString(id)
}
