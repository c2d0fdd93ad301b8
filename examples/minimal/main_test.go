package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

const roleVariable = "MINIMAL_TEST_ROLE"

// TestMain lets the test binary be the program, in a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestProgramHandlesAnOrderAndItsDuplicateOnce(t *testing.T) {
	dsn := testenv.PostgresDSN(t)
	db, err := gorm.Open(postgres.Open(dsn), &gorm.Config{})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, db.AutoMigrate(&Stock{}))
	require.NoError(t, db.Create(&Stock{SKU: "tea", Available: 10}).Error)

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
	}, 30*time.Second, 20*time.Millisecond)
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), roleVariable+"=program", "DATABASE_URL="+dsn, "KAFKA_BROKERS="+strings.Join(brokers, ","))
	cmd.Stderr = t.Output() // shown if the test fails
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := make(chan string, 100)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			if strings.HasPrefix(scanner.Text(), "pack order") {
				lines <- scanner.Text()
			}
		}
	}()
	return lines, func() {
		t.Helper()
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		<-read
		require.NoError(t, cmd.Wait())
	}
}
