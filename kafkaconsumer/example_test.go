package kafkaconsumer_test

import (
	"crypto/tls"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// A channel's transport comes from the application's configuration and from code. inbox.Kafka takes it.
func Example() {
	password := "from a secret store" // not in the file
	file := `
brokers: [kafka-1:9093, kafka-2:9093]
topics: [orders.events]
group_id: fulfilment
start_offset: first
sasl: {mechanism: SCRAM-SHA-512, username: fulfilment}
`
	cfg := kafkaconsumer.DefaultConfig()
	decoder := yaml.NewDecoder(strings.NewReader(file))
	decoder.KnownFields(true) // a misspelt key is an error
	if err := decoder.Decode(&cfg); err != nil {
		panic(err)
	}
	cfg.SASL.Password = password
	cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	cfg.Decoder.ID = envelope.HeaderID("order-event-id")
	fmt.Println(cfg.Validate())
	fmt.Println(cfg.GroupID, "reads", cfg.Topics, "in", cfg.Isolation)
	// Output:
	// <nil>
	// fulfilment reads [orders.events] in read_committed
}

// Validate reports all mistakes at once, as a start does.
func ExampleConfig_Validate() {
	cfg := kafkaconsumer.Config{Topics: []string{"orders.events"}, GroupID: "fulfilment", BatchRecords: -1}
	fmt.Println(cfg.Validate())
	// Output:
	// option Brokers is empty: must have at least one host:port
	// option BatchRecords = -1: must be 1 to 1000000
}
