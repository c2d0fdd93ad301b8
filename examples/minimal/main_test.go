package main

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/programtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/models"
)

func TestMain(m *testing.M) { programtest.Main(m, main) }

func TestProgramHandlesAnOrderAndItsDuplicateOnce(t *testing.T) {
	dsn, db := programtest.Database(t, &Stock{SKU: "tea", Available: 10})

	kafka := kafkatest.Start(t, kafkatest.Topic("orders.events", 2))
	order := kafkatest.Record{
		Value:   []byte(`{"specversion":"1.0","id":"m-1","type":"order.placed","source":"/shop","data":{"order_id":"o-1","sku":"tea","quantity":3}}`),
		Headers: []kafkatest.Header{{Key: "content-type", Value: []byte("application/cloudevents+json")}},
	}
	again := order
	again.Partition = 1
	require.NoError(t, kafka.Produce("orders.events", order, again, order))

	packed, stop := start(t, dsn, kafka.Brokers())
	require.Equal(t, "pack order o-1: 3 of tea (message m-1, attempt 1)", <-packed)
	require.Eventually(t, func() bool {
		var open int64
		err := db.Model(&models.HandlerStatus{}).Where("completed_at IS NULL").Count(&open).Error
		committed := kafka.Committed("fulfilment", "orders.events")
		return err == nil && open == 0 && committed[0] == 2 && committed[1] == 1
	}, 2*time.Minute, 20*time.Millisecond)
	stop()
	for line := range packed {
		require.NotContains(t, line, "pack order")
	}
	var stock Stock
	require.NoError(t, db.Take(&stock).Error)
	require.Equal(t, 7, stock.Available)
}

// start runs the program. The channel gives its lines about packing and is
// closed when it has ended.
func start(t *testing.T, dsn string, brokers []string) (packed <-chan string, stop func()) {
	t.Helper()
	printed, out := io.Pipe()
	end := programtest.Start(t, out, dsn, brokers)
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(printed); scanner.Scan(); {
			if strings.HasPrefix(scanner.Text(), "pack order") {
				lines <- scanner.Text()
			}
		}
	}()
	return lines, func() {
		t.Helper()
		end()
		require.NoError(t, out.Close())
	}
}
