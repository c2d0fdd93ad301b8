package main

import (
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"

	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

const partitions = 4

// Kafka is the broker, in this process.
type Kafka struct{ *kafkatest.Kafka }

// StartKafka starts it, with the shop's topics.
func StartKafka() (Kafka, error) {
	k, err := kafkatest.New(kafkatest.Topic(orders.PlacedTopic, partitions),
		kafkatest.Topic(orders.ConfirmedTopic, partitions))
	return Kafka{k}, err
}

// Unread counts the records that an inbox has not accepted yet, of those written
// so far.
func (k Kafka) Unread(context string) int64 {
	topic := map[string]string{orders.Name: orders.PlacedTopic, shipping.Name: shipping.ConfirmedTopic}[context]
	var unread int64
	for _, p := range k.Cluster().PartitionInfos(topic) {
		unread += p.HighWatermark
	}
	for _, committed := range k.Committed(context, topic) {
		unread -= committed
	}
	return unread
}
