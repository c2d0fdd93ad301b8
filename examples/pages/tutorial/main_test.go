package main

import (
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

const roleVariable = "TUTORIAL_TEST_ROLE"

// TestMain lets the test binary be the program, in a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// What the page has its readers do last: produce two orders, of which one can
// only be served when there is more of the article.
func TestTheProgramServesAnOrderAndRetriesAnother(t *testing.T) {
	dsn := testenv.PostgresDSN(t)
	db, err := gorm.Open(postgres.Open(dsn), &gorm.Config{})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, db.AutoMigrate(&Stock{}))
	require.NoError(t, db.Create(&Stock{SKU: "tea", Available: 10}).Error)
	kafka := kafkatest.Start(t, kafkatest.Topic("orders.events", 1))
	order := func(id, body string) kafkatest.Record {
		return kafkatest.Record{Value: []byte(body), Headers: []kafkatest.Header{
			{Key: "MessageId", Value: []byte(id)}, {Key: "MessageType", Value: []byte("order.placed")}}}
	}
	require.NoError(t, kafka.Produce("orders.events",
		order("o-1", `{"sku":"tea","quantity":3}`), order("o-2", `{"sku":"tea","quantity":12}`)))

	stop := start(t, dsn, kafka.Brokers())
	states := func() map[string]string {
		var rows []struct{ MessageID, State string }
		look, err := os.ReadFile("look.sql")
		require.NoError(t, err)
		if db.Raw(string(look)).Scan(&rows).Error != nil {
			return nil // the program has not made the tables yet
		}
		found := map[string]string{}
		for _, row := range rows {
			found[row.MessageID] = row.State
		}
		return found
	}
	require.Eventually(t, func() bool {
		found := states()
		return found["o-1"] == "completed" && found["o-2"] == "pending, 1 errors"
	}, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, db.Model(&Stock{}).Where("sku = ?", "tea").Update("available", 100).Error)
	require.Eventually(t, func() bool { return states()["o-2"] == "completed" }, 30*time.Second, 20*time.Millisecond)
	stop()
	var open int64
	require.NoError(t, db.Model(&models.HandlerStatus{}).Where("completed_at IS NULL").Count(&open).Error)
	require.Zero(t, open)
}

// start runs the program.
func start(t *testing.T, dsn string, brokers []string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), roleVariable+"=program", "DATABASE_URL="+dsn, "KAFKA_BROKERS="+strings.Join(brokers, ","))
	cmd.Stderr = t.Output() // shown if the test fails
	require.NoError(t, cmd.Start())
	return func() {
		t.Helper()
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	}
}
